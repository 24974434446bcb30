"""Branches of equal depth balanced over lanes.

    depth 0      stem              lane 0
    depth 1      left    right     lane 0, lane 1     longest first, each to the lane on which it ends first
    depth 2      join              lane 0             a narrow level stays with its longest predecessor

Depth only decides the order in which tasks are assigned; nothing waits for a whole level. A task ends first where its lane is
free and its inputs are near, so a chain stays on its lane unless another is free for longer than a hand-off takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.ir.assignment import Assignment
from partitioner.ir.dag import levels, upward_priority
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import scheduled
from partitioner.planner.feasible import Feasible
from partitioner.planner.latency.homes import Homes, closed
from partitioner.planner.timing import Clock


@dataclass(frozen=True)
class ByLevel:
    """Depth by depth, longest way to the end first, each task to the lane on which it ends first."""

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: no placement that keeps pins, groups, memory caps and contiguity was found.
        """
        work = Homes(closed(problem)).run(_Work)
        return scheduled(problem, "by_level", work.clock.lane, work.order, reasons=work.reasons)


class _Work:
    """All tasks, placed by the rules given."""

    def __init__(self, rules: Feasible) -> None:
        self.problem, self.feasible = rules.problem, rules
        self.clock = Clock(self.problem)
        self.reasons = [""] * len(self.problem.tasks)
        self.order: list[int] = []
        least = [min(seconds) for seconds in zip(*self.problem.seconds, strict=True)]
        handoff = self.problem.processors[0].handoff
        self.remaining = upward_priority(self.problem.dag, least.__getitem__, lambda _one, _other: handoff)
        for level in levels(self.problem.dag):
            self.place(level)

    def place(self, level: list[int]) -> None:
        """Longest first, each to the lane on which it ends first; ties go to the lane that hands over most."""
        for task in sorted(level, key=lambda number: -self.remaining[number]):
            lanes = self.lanes(task)
            favourite = self.favourite(task)
            ends = [(self.end(task, lane), lane != favourite, lane) for lane in lanes]
            lane = min(ends)[2]
            self.feasible.assign(task, self.problem.lanes[lane])
            self.clock.place(task, lane)
            self.order.append(task)
            self.reasons[task] = self.why(task, lane, favourite, len(lanes))

    def lanes(self, task: int) -> list[int]:
        """The lanes that a task may have."""
        first, processors = self.problem.first_lane, self.problem.processors
        return [first[each] + index for each in self.feasible.processors(task) for index in range(processors[each].lanes)]

    def end(self, task: int, lane: int) -> float:
        """When a task would end on a lane, and the caller, on lane 0, know of it if nobody else waits for it."""
        return self.clock.when(task, lane)[1] + (0.0 if lane == 0 or self.problem.after[task] else self.problem.back)

    def favourite(self, task: int) -> int:
        """The lane of the predecessor that hands over most."""
        handed: dict[int, float] = {}
        for source, value in self.problem.before[task]:
            handed[source] = handed.get(source, 0.0) + (self.problem.values[value][1] if value >= 0 else 0.0)
        return self.clock.lane[max(handed, key=handed.__getitem__)] if handed else 0

    def why(self, task: int, lane: int, favourite: int, choices: int) -> str:
        """The reason, for reports."""
        if choices == 1:
            return "the only lane that may have it"
        if lane == favourite and self.problem.before[task]:
            return "stays on its predecessor's lane"
        return f"ends first on lane {lane} of {choices}"
