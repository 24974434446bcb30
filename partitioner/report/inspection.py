"""What there is to know about a plan, as plain data: its branches by depth, where they run, and what that is expected to give.

Reports draw Inspections and know nothing else. A *branch* is a chain of ops between a fork and a join (`report.branches`);
its *depth* is the length of the longest path of branches that leads to it. Branches of one depth have no path between them.

    depth 0   b0 stem
    depth 1   b1 left    b2 right      width 2
    depth 2   b3 head
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from partitioner.errors import PartitionerError


class DepthError(PartitionerError):
    """A text is no range of depths, or a plan has none of its depths."""


@dataclass(frozen=True)
class Branch:
    """A chain of ops. Sizes are in bytes, times in seconds; ``None`` is what only example inputs could tell.

    Args:
        name: ``b0``, ``b1``, ... by depth.
        ops: names, in program order.
        path: the innermost module that all of the ops belong to, ``""`` for the root.
        parameters: elements of the parameters, buffers and constants that it uses, each counted once.
        parameter_bytes: their size.
        flops: floating-point operations.
        output_bytes: size of what other branches or the caller may read.
        seconds: expected time of its ops, where they run.
        critical: whether it is part of the critical path: of the longest chain of ops that must wait for each other.
        devices: names of the devices that it runs on; more than one where a chain is cut.
        lanes: names of the lanes that it runs on, in order.
        tasks: names of the tasks that its ops belong to; a task may hold other branches too.
        reasons: why each of those tasks is where it is.
    """

    name: str
    ops: tuple[str, ...]
    path: str
    parameters: int
    parameter_bytes: int
    flops: int | None
    output_bytes: int | None
    seconds: float | None
    critical: bool | None
    devices: tuple[str, ...]
    lanes: tuple[str, ...]
    tasks: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def short_ops(self) -> tuple[str, ...]:
        """The names of its ops without what its module path says already."""
        prefix = f"{self.path.replace('.', '_')}_"
        return tuple(name.removeprefix(prefix) for name in self.ops)


@dataclass(frozen=True)
class Depth:
    """The branches of one depth, and how many there are."""

    depth: int
    width: int
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Edge:
    """Two branches that keep their order, and why: ``data``, ``hazard``, or ``random`` for a shared random generator."""

    source: str
    target: str
    kind: str


@dataclass(frozen=True)
class LaneLoad:
    """One lane: how many tasks it runs, and for which share of the predicted time it is busy, 0 to 1."""

    name: str
    tasks: int
    busy: float | None


@dataclass(frozen=True)
class DeviceLoad:
    """One device. Sizes in bytes.

    Args:
        name: what specs call it.
        torch_device: what torch calls it.
        parameter_bytes: parameters, buffers and constants of the ops that run there, each counted once.
        peak_bytes: the most that values between tasks take at once; ``None`` without example inputs.
        cap: what a plan may use; ``None`` for no cap.
        headroom: what is left of the cap at the peak; negative if it does not fit.
        lanes: its lanes.
        assumed: which of its figures (flops, bandwidth, overhead, handoff) nobody has given.
    """

    name: str
    torch_device: str
    parameter_bytes: int
    peak_bytes: int | None
    cap: int | None
    headroom: int | None
    lanes: tuple[LaneLoad, ...]
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Transfers:
    """What moves from one device to another in one call: how many tensors, and their bytes if example inputs tell."""

    source: str
    target: str
    count: int
    bytes: int | None


@dataclass(frozen=True)
class Prediction:
    """Expected times of one call, in seconds. Estimates: they rank plans, and only a measurement says how long one takes.

    Args:
        work: all ops one after the other, on one of the lanes and each where it is fastest.
        critical_path: the longest chain of ops that must wait for each other, with nothing else running.
        issue: the host issues every op, one after the other; 0 where a CPU runs some itself.
        bound: no plan on this machine is faster: the largest of the critical path, the work shared out evenly, and issuing.
        serial: the model on the first device alone; of a CPU, with all of its cores.
        makespan: this plan, simulated.
        graph_speedup: ``serial / bound``, the most that any plan could give. Where lanes do not share cores that is
            ``min(lanes, work / critical path)``.
        plan_speedup: ``serial / makespan``, what this plan is expected to give.
        gap: how far the makespan is above the bound, as a share of the bound.
    """

    work: float
    critical_path: float
    issue: float
    bound: float
    serial: float
    makespan: float
    graph_speedup: float
    plan_speedup: float
    gap: float


@dataclass(frozen=True)
class Summary:
    """The plan as a whole.

    Args:
        model: class of the model.
        frontend: which front end traced it.
        effects: ``observed`` on example inputs, or ``static`` from the table.
        policy: who placed it.
        ops: how many ops there are.
        branches: how many branches.
        tasks: how many tasks.
        depth: how many depths there are.
        width: the most branches of one depth.
        parameters: elements of all parameters, buffers and constants that its ops use, each counted once.
        parameter_bytes: their size.
        flops: floating-point operations of one call; ``None`` without example inputs.
        prediction: expected times; ``None`` without example inputs.
        transfers: what moves between devices, by source and target.
        devices: the devices, in the order of the machine.
        verdict: in words: what runs at the same time, and if nothing does, why.
        notes: what a reader should know besides.
    """

    model: str
    frontend: str
    effects: str
    policy: str
    ops: int
    branches: int
    tasks: int
    depth: int
    width: int
    parameters: int
    parameter_bytes: int
    flops: int | None
    prediction: Prediction | None
    transfers: tuple[Transfers, ...]
    devices: tuple[DeviceLoad, ...]
    verdict: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """A plan, looked at: the whole, and every branch by depth."""

    summary: Summary
    depths: tuple[Depth, ...]
    edges: tuple[Edge, ...]

    @property
    def branches(self) -> Iterator[Branch]:
        """Every branch that is shown, by depth."""
        return (branch for depth in self.depths for branch in depth.branches)

    def only(self, wanted: range) -> Inspection:
        """The same plan with the depths in ``wanted`` alone, and the edges between them. The summary stays whole.

        Raises:
            DepthError: it has none of them.
        """
        depths = tuple(depth for depth in self.depths if depth.depth in wanted)
        if not depths:
            there = f"0 to {self.summary.depth - 1}" if self.summary.depth else "none"
            raise DepthError(f"no branch has depth {wanted.start} or any wanted after it; the depths are {there}")
        shown = {branch.name for depth in depths for branch in depth.branches}
        edges = tuple(edge for edge in self.edges if edge.source in shown and edge.target in shown)
        return replace(self, depths=depths, edges=edges)


def parse_depths(text: str) -> range:
    """The depths that ``text`` asks for, as a Python slice does: the end is not included.

    Raises:
        DepthError: it is neither a number nor two numbers with a colon between them, or it holds no depth.

    >>> parse_depths("3:8"), parse_depths("3"), parse_depths(":2")
    (range(3, 8), range(3, 4), range(0, 2))
    """
    found = re.fullmatch(r"([0-9]{0,9}):([0-9]{0,9})|([0-9]{1,9})", text.strip())
    if found is None:
        raise DepthError(f"{text!r} is no range of depths; write 3:8 for the depths 3 to 7, or 3 for one")
    first, end, only = found.groups()
    wanted = range(int(first or 0), int(end or 10**9)) if only is None else range(int(only), int(only) + 1)
    if not wanted:
        raise DepthError(f"{text!r} holds no depth; the second number must be larger than the first")
    return wanted
