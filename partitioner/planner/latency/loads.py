"""Processors of equal load by list scheduling: each task, in turn, to the processor on which the largest load stays smallest.

Source: the longest-first rule of Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics
17(2), 1969, with groups in the place of jobs and what they move counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.problem import Problem
from partitioner.planner.feasible import Feasible


def evened(problem: Problem, rules: Feasible) -> list[int]:
    """The processor of each task, for the throughput objective; in topological order where parts must be contiguous.

    Raises:
        PlacementError: a task fits nowhere any more.
    """
    most = [max((row[task] for row in problem.seconds if row[task] < float("inf")), default=0.0) for task in _tasks(problem)]
    order: Sequence[int] = _tasks(problem)
    if not problem.contiguous:
        size = {group: sum(most[task] for task in tasks) for group, tasks in problem.members.items()}
        order = sorted(order, key=lambda task: (-size[problem.group_of[task]], problem.group_of[task], task))
    even = _Even(problem)
    for task in order:
        ways = rules.processors(task)
        chosen = ways[0] if task in even.where else min(ways, key=lambda each: (even.after(task, each), each))
        rules.assign(task, chosen)
        for member in problem.members[problem.group_of[task]] if not problem.contiguous else (task,):
            if member not in even.where:
                even.put(member, chosen)
    return [even.where[task] for task in _tasks(problem)]


def _tasks(problem: Problem) -> range:
    return range(len(problem.tasks))


class _Even:
    """Loads while tasks are placed: seconds of work, and of what passes to and from tasks that have been placed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.where: dict[int, int] = {}
        self.load = [0.0] * len(problem.processors)
        self.passed: set[tuple[int, int]] = set()
        self.made: list[list[int]] = [[] for _ in problem.tasks]
        for value, (maker, _) in enumerate(problem.values):
            self.made[maker].append(value)

    def after(self, task: int, processor: int) -> float:
        """The largest load among the processors whose load grows when the task's group goes to ``processor``."""
        tasks = self.problem.members[self.problem.group_of[task]] if not self.problem.contiguous else [task]
        grown: dict[int, float] = {processor: 0.0}
        for member in tasks:
            grown[processor] += self.work(member, processor)
            for channel, value in self.moves(member, processor):
                for end in self.problem.channels[channel].ends:
                    grown[end] = grown.get(end, 0.0) + self.passage(channel, value)
        return max(self.load[each] + more for each, more in grown.items())

    def put(self, task: int, processor: int) -> None:
        """Place a task."""
        self.load[processor] += self.work(task, processor)
        for channel, value in self.moves(task, processor):
            self.passed.add((value, channel))
            for end in self.problem.channels[channel].ends:
                self.load[end] += self.passage(channel, value)
        self.where[task] = processor

    def work(self, task: int, processor: int) -> float:
        """Seconds of a task, shared out over a processor's lanes."""
        return self.problem.seconds[processor][task] / self.problem.processors[processor].lanes

    def passage(self, channel: int, value: int) -> float:
        """Seconds of a value on a channel."""
        return self.problem.channels[channel].seconds(self.problem.values[value][1])

    def moves(self, task: int, processor: int) -> list[tuple[int, int]]:
        """Channels and values that passing to and from tasks that have been placed takes, beside what has passed already."""
        problem, found = self.problem, set[tuple[int, int]]()
        for source, value in problem.before[task]:
            if value >= 0 and source in self.where:
                found.update((each, value) for each in problem.routes.get((self.where[source], processor), ()))
        for value in self.made[task]:
            for reader in problem.readers[value]:
                if reader in self.where:
                    found.update((each, value) for each in problem.routes.get((processor, self.where[reader]), ()))
        return sorted(each for each in found if (each[1], each[0]) not in self.passed)
