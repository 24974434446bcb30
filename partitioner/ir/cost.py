"""How long an op takes and how large it is: a roofline over FLOPs and bytes, plus the host's time to issue it.

    time = overhead + max(flops / rate, bytes moved / bandwidth)

On the CPU an op can also use several threads, and how much that helps depends on its arithmetic intensity (FLOPs per byte):
a matrix-vector product waits for memory and gains nothing, a large matrix product scales with the cores. `thread_speedup`
fits what was measured on linear layers; see docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partitioner.ir.machine import Device, Machine

HALF_INTENSITY = 10.0
"""FLOPs per byte at which an op gets half of what more threads could give it."""


@dataclass(frozen=True)
class OpCost:
    """One op: floating-point operations, bytes read and written, bytes of the state that no op before it uses.

    So the state of several ops is their sum, however many of them share a parameter; those that do share a device.
    """

    flops: int
    moved: int
    state: int


@dataclass(frozen=True)
class Costs:
    """The cost of every op, on every device of a machine.

    Args:
        machine: where it would run.
        ops: by op name.
        shapes_known: whether shapes are known. If not, parameter sizes are all there is to go by.
    """

    machine: Machine
    ops: Mapping[str, OpCost]
    shapes_known: bool

    def op_time(self, op: str, device: Device, threads: int = 1) -> float:
        """Seconds of one op on one lane of ``device``, with ``threads`` threads where that is a CPU."""
        cost = self.ops[op]
        if not (cost.flops or cost.moved):
            return device.overhead / 2
        busy = max(cost.flops / device.flops, cost.moved / device.bandwidth)
        return device.overhead + busy / thread_speedup(cost, threads)

    def time(self, ops: Iterable[str], device: Device, threads: int = 1) -> float:
        """Seconds of several ops, one after the other."""
        return sum(self.op_time(op, device, threads) for op in ops)

    def __str__(self) -> str:
        lines = ["costs"]
        for name, cost in self.ops.items():
            lines.append(f"  {name}  {cost.flops} FLOP  {cost.moved} B moved  {cost.state} B state")
        return "\n".join(lines)


def thread_speedup(cost: OpCost, threads: int) -> float:
    """How much faster ``threads`` threads make an op than one does.

    Example:
        >>> matrix_vector = OpCost(flops=2 * 1024**2, moved=4 * 1024**2, state=0)
        >>> matrix_matrix = OpCost(flops=2 * 256 * 1024**2, moved=6 * 1024**2, state=0)
        >>> round(thread_speedup(matrix_vector, 2), 2), round(thread_speedup(matrix_matrix, 2), 2)
        (1.05, 1.9)
    """
    intensity = cost.flops / max(cost.moved, 1)
    return 1 + (threads - 1) * intensity / (intensity + HALF_INTENSITY)
