"""How long an op takes and how large it is: seconds that were measured, and a roofline where none were.

    time = overhead + max(flops / rate, bytes moved / bandwidth)

On the CPU an op can also use several threads, and how much that helps depends on its arithmetic intensity (FLOPs per byte):
a matrix-vector product waits for memory and gains nothing, a large matrix product scales with the cores. `thread_speedup`
fits what was measured on linear layers; see docs/benchmarks.md. What was measured says it better: a small convolution that two
threads slow down is told from a wide one.

Source of the roofline: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from partitioner.ir.graph import NOTHING, Work
from partitioner.ir.machine import Device, Machine
from partitioner.ir.words import few

HALF_INTENSITY = 10.0
"""FLOPs per byte at which an op gets half of what more threads could give it."""

FLOPS_PER_CYCLE = 32
"""Of a core: two fused multiply-adds of eight floats."""

ROOFLINE_FIGURES = ("flops", "bandwidth", "overhead")
"""What the roofline of a device rests on, and a measured op does not."""

Measured = Mapping[tuple[str, str, int], float]
"""Seconds by op name, device name and number of threads; 1 thread on an accelerator."""


@dataclass(frozen=True)
class OpCost:
    """One op: floating-point operations, bytes read and written, bytes of the state that no op before it uses.

    So the state of several ops is their sum, however many of them share a parameter; those that do share a device. ``dtype`` is
    that of its result, in which it computes as far as anybody can tell: ``float32``, ``bfloat16``. ``exchange`` are seconds for
    what passes between ranks. ``inside`` is what it comes down to: a recurrent layer is many kernels, one after the other, and
    reads its weights at each step, from the cache.
    """

    flops: int
    moved: int
    state: int
    dtype: str = ""
    exchange: float = 0.0
    inside: Work = NOTHING


@dataclass(frozen=True)
class Costs:
    """The cost of every op, on every device of a machine.

    Args:
        machine: where it would run.
        ops: by op name.
        shapes_known: whether shapes are known. If not, parameter sizes are all there is to go by.
        measured: seconds of the ops that were measured, which count in the place of the roofline.
        factors: by device name, how many times as long as by the roofline the measured ops took; those that were not measured
            are taken to be as far from it.
        notes: what could not be measured, and why.

    Example:
        >>> cpu = Device("cpu", "cpu", cores=2, flops=1e9, overhead=0.0)
        >>> ops = {"wide": OpCost(10**9, 0, 0), "small": OpCost(10**6, 0, 0)}
        >>> costs = Costs(Machine((cpu,)), ops, True, {("small", "cpu", 1): 0.002, ("small", "cpu", 2): 0.003})
        >>> costs.op_time("wide", cpu), costs.op_time("small", cpu), costs.op_time("small", cpu, threads=2)
        (1.0, 0.002, 0.003)
    """

    machine: Machine
    ops: Mapping[str, OpCost]
    shapes_known: bool
    measured: Measured = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def op_time(self, op: str, device: Device, threads: int = 1) -> float:
        """Seconds of one op on one lane of ``device``, with ``threads`` threads where that is a CPU."""
        if not self.measured:
            return roofline(self.ops[op], device, threads)
        if (exact := self.measured.get((op, device.name, threads))) is not None:
            return exact
        for width in sorted(self.widths.get(device.name, ()), key=lambda width: (width > threads, abs(width - threads))):
            seconds = self.measured.get((op, device.name, width))
            if seconds is not None:
                return seconds * (thread_speedup(self.ops[op], width) / thread_speedup(self.ops[op], threads))
        return roofline(self.ops[op], device, threads) * self.factors.get(device.name, 1.0)

    def time(self, ops: Iterable[str], device: Device, threads: int = 1) -> float:
        """Seconds of several ops, one after the other."""
        return sum(self.op_time(op, device, threads) for op in ops)

    @cached_property
    def widths(self) -> dict[str, tuple[int, ...]]:
        """The numbers of threads with which ops were measured, rising, by device name."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for _, device, threads in self.measured:
            found[device].add(threads)
        return {device: tuple(sorted(widths)) for device, widths in found.items()}

    def share_measured(self, device: Device) -> float:
        """The part of the time of all ops on ``device``, one after the other, that was measured."""
        width = self.widths.get(device.name, (1,))[0]
        known = (op for op in self.ops if (op, device.name, width) in self.measured)
        whole = self.time(self.ops, device, width)
        return self.time(known, device, width) / whole if whole else 0.0

    @property
    def basis(self) -> tuple[str, ...]:
        """What times rest on, in words: for each device how much was measured, and for the rest which figures were assumed."""
        lines = []
        for device in self.machine.devices:
            width = self.widths.get(device.name, (1,))[0]
            known = sum((op, device.name, width) in self.measured for op in self.ops)
            missing = len(self.ops) - known
            assumed = [figure for figure in device.assumed if missing or figure not in ROOFLINE_FIGURES]
            if known:
                lines.append(
                    f"measured on {device.name}: {known} of {len(self.ops)} ops, {self.share_measured(device):.0%} of the time"
                )
            if assumed:
                lines.append(
                    f"assumed: {', '.join(assumed)} of {device.name}{' (for the other ops)' if known and missing else ''}"
                )
        links = [f"{', '.join(link.assumed)} of {link.source} -> {link.target}" for link in self.machine.links if link.assumed]
        return (*lines, *([f"assumed: {few(links)}"] if links else []), *self.notes)

    def __str__(self) -> str:
        times: defaultdict[str, str] = defaultdict(str)
        for (name, device, threads), seconds in self.measured.items():
            times[name] += f"  {seconds * 1e6:.1f} us on {device} with {threads}"
        rows = (
            f"  {name}  {cost.flops} FLOP  {cost.moved} B moved  {cost.state} B state{times[name]}"
            for name, cost in self.ops.items()
        )
        return "\n".join(["costs", *rows])


def roofline(cost: OpCost, device: Device, threads: int = 1) -> float:
    """Seconds that an op takes by its FLOPs and bytes; half the host's time for one that computes nothing.

    On a CPU each further kernel of an op takes half the host's time, too, for Python calls it once; and what kernels take one
    by one takes its cycles. An accelerator has kernels of its own for such ops.

    Example:
        >>> roofline(OpCost(flops=10**9, moved=0, state=0), Device("cpu", "cpu", flops=1e10, overhead=0.0))
        0.1
    """
    if cost.exchange:
        return device.overhead + cost.exchange
    if not (cost.flops or cost.moved):
        return device.overhead / 2
    busy = max(cost.flops / device.rate(cost.dtype), cost.moved / device.bandwidth) / thread_speedup(cost, threads)
    return device.overhead + busy + (_inside(cost.inside, device, threads) if device.kind == "cpu" else 0.0)


def _inside(work: Work, device: Device, threads: int) -> float:
    """Seconds that a CPU takes for what is in an op beside products and bytes."""
    further = max(0, work.kernels - 1) * device.overhead / 2
    return further + (work.cycles / threads + work.drawn) * FLOPS_PER_CYCLE / device.flops


def thread_speedup(cost: OpCost, threads: int) -> float:
    """How much faster ``threads`` threads make an op than one does.

    Example:
        >>> matrix_vector = OpCost(flops=2 * 1024**2, moved=4 * 1024**2, state=0)
        >>> matrix_matrix = OpCost(flops=2 * 256 * 1024**2, moved=6 * 1024**2, state=0)
        >>> round(thread_speedup(matrix_vector, 2), 2), round(thread_speedup(matrix_matrix, 2), 2)
        (1.05, 1.9)
    """
    touched = cost.inside.touched if cost.inside.kernels > 1 else 0
    intensity = cost.flops / max(cost.moved, touched, 1)
    return 1 + (threads - 1) * intensity / (intensity + HALF_INTENSITY)
