"""Branches of equal depth balanced over lanes: the default policy.

    depth 0      stem              lane 0
    depth 1      left    right     lane 0, lane 1     longest first, each to the lane on which it ends first
    depth 2      join              lane 0             a narrow level stays with its longest predecessor

Depth only decides the order in which tasks are assigned; nothing waits for a whole level. A task ends first where its lane is
free and its inputs are near, so a chain stays on its lane unless another is free for longer than a hand-off takes.
"""

from __future__ import annotations

from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs
from partitioner.ir.dag import levels, upward_priority
from partitioner.ir.machine import Machine
from partitioner.ir.task import TaskGraph
from partitioner.planner.constraints import Constraints
from partitioner.planner.feasible import Feasible


def by_level(tasks: TaskGraph, costs: Costs, machine: Machine, constraints: Constraints) -> Assignment:
    """Place every task, level by level.

    Args:
        tasks: what to place.
        costs: seconds and bytes of every op.
        machine: lanes and links.
        constraints: pins and groups.

    Raises:
        PlacementError: a task fits nowhere.
    """
    scheduler = _ListScheduler(tasks, costs, machine, constraints)
    for level in levels(tasks.dag):
        scheduler.place_level(level)
    return Assignment("by_level", scheduler.lane, scheduler.priority, scheduler.reason, scheduler.makespan)


class _ListScheduler:
    """The state of the list scheduler: when each lane is free, where each task ended."""

    def __init__(self, tasks: TaskGraph, costs: Costs, machine: Machine, constraints: Constraints) -> None:
        self.tasks, self.costs, self.machine = tasks, costs, machine
        self.feasible = Feasible(tasks, costs, machine, constraints)
        self.free = [0.0] * len(machine.lanes)
        self.end: dict[str, float] = {}
        self.lane: dict[str, int] = {}
        self.reason: dict[str, str] = {}
        self.copied: set[tuple[str, str]] = set()
        first = machine.devices[0]
        self.priority = upward_priority(tasks.dag, lambda t: self.seconds(t, 0, alone=False), lambda _a, _b: first.handoff)

    @property
    def makespan(self) -> float:
        """When the last task ends."""
        return max(self.end.values(), default=0.0)

    def seconds(self, task: str, lane: int, alone: bool) -> float:
        """Time of a task on a lane; alone on a CPU it may use every core."""
        device = self.machine.device_of(lane)
        return self.costs.time(self.tasks.by_name[task].ops, device, device.cores if alone else device.threads_per_lane)

    def place_level(self, level: list[str]) -> None:
        """Longest first, each to the lane on which it ends first."""
        alone = len(level) == 1
        for task in sorted(level, key=lambda name: -self.priority[name]):
            favourite = self._favourite(task)
            choices = [(self._end(task, lane, alone), lane != favourite, lane) for lane in self.feasible.lanes(task)]
            end, _, lane = min(choices)
            self.feasible.assign(task, lane)
            self.free[lane] = self.end[task] = end
            self.lane[task] = lane
            self._note_copies(task, lane)
            self.reason[task] = self._why(task, lane, favourite, len(choices))

    def _note_copies(self, task: str, lane: int) -> None:
        there = self.machine.lanes[lane].device_name
        for before in self.tasks.predecessors[task]:
            if self.machine.lanes[self.lane[before]].device_name != there:
                self.copied.update((value, there) for value in self.tasks.edges[before, task])

    def _favourite(self, task: str) -> int:
        """The lane of the predecessor that hands over most."""
        before = self.tasks.predecessors[task]
        return self.lane[max(before, key=lambda name: self._bytes(name, task))] if before else 0

    def _bytes(self, source: str, target: str) -> int:
        ops = self.tasks.graph.by_name
        return sum(ops[value].bytes for value in self.tasks.edges[source, target])

    def _end(self, task: str, lane: int, alone: bool) -> float:
        """When a task would end on a lane: after its inputs have been handed over and copied, the lane being held meanwhile."""
        handoff = self.machine.device_of(lane).handoff
        # The caller's lane starts at once; every other one has to be woken up first.
        start = max(self.free[lane], 0.0 if lane == 0 else handoff)
        for before in self.tasks.predecessors[task]:
            start = max(start, self._arrival(before, task, lane))
        copies = sum(self._copy_seconds(before, task, lane) for before in self.tasks.predecessors[task])
        # What nobody follows is waited for by the caller, on lane 0.
        back = 0.0 if lane == 0 or self.tasks.successors[task] else handoff
        return start + copies + self.seconds(task, lane, alone) + back

    def _arrival(self, before: str, task: str, lane: int) -> float:
        """When ``lane`` knows that ``before`` is done; a generator on an accelerator orders issue, not kernels."""
        if (before, task) in self.tasks.random_only and self.machine.lanes[lane].kind != "cpu":
            return 0.0
        return self.end[before] + (0.0 if self.lane[before] == lane else self.machine.device_of(lane).handoff)

    def _copy_seconds(self, before: str, task: str, lane: int) -> float:
        """Time to copy what ``before`` hands over, unless an earlier task on the same device has had it copied."""
        here, there = self.machine.lanes[self.lane[before]].device_name, self.machine.lanes[lane].device_name
        if here == there:
            return 0.0
        link, ops = self.machine.link(here, there), self.tasks.graph.by_name
        values = [value for value in self.tasks.edges[before, task] if (value, there) not in self.copied]
        return sum(link.latency + ops[value].bytes / link.bandwidth for value in values if ops[value].tensor)

    def _why(self, task: str, lane: int, favourite: int, choices: int) -> str:
        if choices == 1:
            return "the only lane that may have it"
        if lane == favourite and self.tasks.predecessors[task]:
            return "stays on its predecessor's lane"
        return f"ends first on lane {lane} of {choices}"
