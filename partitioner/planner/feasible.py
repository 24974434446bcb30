"""Where a task may still go: pins, groups that are already somewhere, memory, contiguity. Shared by every policy."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.ir.units import format_size


class Feasible:
    """What has been given to which processor so far, task after task in an order that respects every edge.

    Groups of tasks that must share a processor are reserved as a whole when the first of them is placed, and groups that can
    go to one processor only before all others, so that a later one never finds its processor full.

    Raises:
        PlacementError: a group can run nowhere, or pinned ones exceed a processor's memory.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.home: dict[int, int] = {}
        self.used = [0.0] * len(problem.processors)
        self.able: dict[int, list[int]] = {}
        known: dict[object, list[int]] = {}
        for group, tasks in problem.members.items():
            self.able[group] = able = self._able(group, known)
            if not able:
                raise PlacementError(self._nowhere(tasks[0]))
        for group, able in self.able.items():
            if len(able) == 1:
                self._reserve(group, able[0])
        # Processors that some path to a task has left, as bits; forward tasks only.
        self._left = [0] * len(problem.tasks) if problem.contiguous else None
        self._placed: list[int] = [-1] * len(problem.tasks) if problem.contiguous else []

    def _able(self, group: int, known: dict[object, list[int]]) -> list[int]:
        """`Problem.able`, once for all free tasks that take nothing and can run anywhere."""
        problem = self.problem
        tasks = problem.members[group]
        if len(tasks) > 1 or problem.demand[group] or group in problem.pin:
            return problem.able(group)
        key = tuple(table[tasks[0]] == float("inf") for table in problem.seconds)
        return known.setdefault(key, problem.able(group)) if key not in known else known[key]

    def _reserve(self, group: int, processor: int) -> None:
        if self.used[processor] + self.problem.demand[group] > self.problem.processors[processor].memory:
            raise PlacementError(self._full(self.problem.members[group][0]))
        self.home[group] = processor
        self.used[processor] += self.problem.demand[group]

    def processors(self, task: int) -> Sequence[int]:
        """The processors that ``task`` may go to.

        Raises:
            PlacementError: it fits nowhere any more.
        """
        group = self.problem.group_of[task]
        fixed = self.home.get(group)
        allowed: Sequence[int]
        if fixed is not None:
            allowed = (fixed,)
        elif not self.problem.demand[group]:
            allowed = self.able[group]
        else:
            allowed = [number for number in self.able[group] if self._fits(number, group)]
        if not allowed:
            raise PlacementError(self._full(task))
        if self._left is not None and task not in self.problem.backward:
            roomy = allowed
            allowed = [number for number in roomy if not self._left_by(task, number) >> number & 1]
            if not allowed:
                raise PlacementError(self._back(task, roomy))
        return allowed

    def _left_by(self, task: int, processor: int) -> int:
        assert self._left is not None
        left = 0
        for source, _ in self.problem.before[task]:
            if source not in self.problem.backward:
                left |= self._left[source]
                if self._placed[source] != processor:
                    left |= 1 << self._placed[source]
        return left

    def assign(self, task: int, processor: int) -> None:
        """Note that ``task`` goes to ``processor``."""
        group = self.problem.group_of[task]
        if group not in self.home:
            self.home[group] = processor
            self.used[processor] += self.problem.demand[group]
        if self._left is not None:
            self._left[task] = self._left_by(task, processor)
            self._placed[task] = processor

    def _fits(self, processor: int, group: int) -> bool:
        return self.used[processor] + self.problem.demand[group] <= self.problem.processors[processor].memory

    def _nowhere(self, task: int) -> str:
        problem, group = self.problem, self.problem.group_of[task]
        if group not in problem.pin and all(
            table[one] < float("inf") for table in problem.seconds for one in problem.members[group]
        ):
            return self._full(task)
        names = ", ".join(problem.tasks[each] for each in problem.members[group][:3])
        more = f" and {len(problem.members[group]) - 3} more" if len(problem.members[group]) > 3 else ""
        lines = [f"task {names} can run nowhere:"]
        if len(problem.members[group]) > 1:
            why = ", so that no path leaves it and comes back," if problem.contiguous else ""
            lines = [f"tasks {names}{more} must share a device{why} and none can have them:"]
        for number, each in enumerate(problem.processors):
            lacking = [problem.tasks[one] for one in problem.members[group] if problem.seconds[number][one] == float("inf")]
            if problem.pin.get(group, number) != number:
                lines.append(f"  {each.name}: pinned to {problem.processors[problem.pin[group]].name}")
            elif lacking:
                lines.append(f"  {each.name}: no seconds are given for {lacking[0]} on kind {problem.kinds[each.kind].name}")
            else:
                need, cap = format_size(int(problem.demand[group])), format_size(int(each.memory))
                lines.append(f"  {each.name}: {need} are needed, and its memory is {cap}")
        return "\n".join(lines)

    def _back(self, task: int, roomy: Sequence[int]) -> str:
        names = ", ".join(self.problem.processors[number].name for number in roomy)
        return (
            f"task {self.problem.tasks[task]} has room on {names} only, and there a path would come back to a device that it "
            f"has left\nAnother policy may find an answer; without contiguity there may be one, too."
        )

    def _full(self, task: int) -> str:
        problem = self.problem
        need = format_size(int(problem.demand[problem.group_of[task]]))
        lines = [f"task {problem.tasks[task]} needs {need} of {what_is_held(problem)}, and no device has room:"]
        for number, device in enumerate(problem.processors):
            cap = "no cap" if device.memory == float("inf") else format_size(int(device.memory))
            lines.append(f"  {device.name}: {format_size(int(self.used[number]))} used of {cap}")
        lines.append("Raise a memory cap, add a device, or remove a pin.")
        return "\n".join(lines)


def what_is_held(problem: Problem) -> str:
    """What the memory of tasks is, in words: a model's is known to be its state."""
    return "parameters and buffers (and of what training keeps for them)" if problem.labels else "memory"
