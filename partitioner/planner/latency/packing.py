"""One answer to the rules alone - pins, groups, memory, contiguity - whatever it costs: a certificate that there is one.

First fit by falling demand, which is nearly always enough; then a search with backtracking; then, where it is installed,
CP-SAT, which also finds out that there is no answer.

Source of first fit decreasing: Johnson, "Near-optimal bin packing algorithms", MIT, 1973.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from partitioner.ir.problem import Problem
from partitioner.planner.assigned import held
from partitioner.planner.feasible import returns

MOST_STEPS = 200_000
"""Placements that the search with backtracking tries, in all."""


def certificate(problem: Problem) -> dict[int, int] | None:
    """A processor for every group that keeps every rule; ``None`` if none was found."""
    able = problem.able
    if not all(able.values()):
        return None
    found = _searched(problem, able, MOST_STEPS) if problem.contiguous else _packed(problem, able)
    if found is None and find_spec("ortools") is not None:
        from partitioner.planner.latency.model import any_homes

        found = any_homes(problem)
    return found


def keeps(problem: Problem, home: dict[int, int]) -> bool:
    """Whether homes keep memory caps and contiguity; groups and pins are kept by what they are."""
    homes = [home[group] for group in problem.group_of]
    if any(full > cap for full, cap in zip(held(problem, homes), problem.caps, strict=True)):
        return False
    return not problem.contiguous or next(returns(problem, homes), None) is None


def _packed(problem: Problem, able: dict[int, list[int]]) -> dict[int, int] | None:
    """Largest demand first: to the first processor with room, or to that with the least or the most room left."""
    demand = problem.demand
    largest = sorted(able, key=lambda group: (-demand[group], len(able[group])))
    scarce = sorted(able, key=lambda group: (len(able[group]), -demand[group]))
    for order in (largest, scarce):
        for rule in (0.0, 1.0, -1.0):
            room = list(problem.caps)
            home: dict[int, int] = {}
            for group in order:
                fits = [each for each in able[group] if demand[group] <= room[each]]
                if not fits:
                    break
                home[group] = best = min(fits, key=lambda each: rule * room[each])
                room[best] -= demand[group]
            if len(home) == len(able):
                return home
    return _backtracked(problem, able, largest)


def _backtracked(problem: Problem, able: dict[int, list[int]], order: list[int]) -> dict[int, int] | None:
    """Depth first, largest demand first, tightest processor first; equal rooms are tried once."""
    demand, room = problem.demand, list(problem.caps)

    def ways(group: int) -> Iterator[int]:
        fits = sorted((room[each], each) for each in able[group] if demand[group] <= room[each])
        seen: set[tuple[float, int]] = set()
        for free, each in fits:
            if (free, problem.processors[each].kind) not in seen or len(able[group]) < len(room):
                seen.add((free, problem.processors[each].kind))
                yield each

    home: dict[int, int] = {}
    open_ways = [ways(order[0])]
    for _ in range(MOST_STEPS):
        chosen = next(open_ways[-1], None)
        if chosen is None:
            open_ways.pop()
            if not open_ways:
                return None
            undone = order[len(open_ways) - 1]
            room[home[undone]] += demand[undone]
            del home[undone]
            continue
        group = order[len(open_ways) - 1]
        home[group] = chosen
        room[chosen] -= demand[group]
        if len(home) == len(order):
            return home
        open_ways.append(ways(order[len(open_ways)]))
    return None


def _searched(problem: Problem, able: dict[int, list[int]], steps: int) -> dict[int, int] | None:
    """Contiguous: along the tasks' order, near their predecessors while they fit, with the processors in several orders."""
    count = len(problem.processors)
    roomy = sorted(range(count), key=lambda each: -problem.processors[each].memory)
    for order in (roomy, list(range(count)), roomy[::-1]):
        home = _Trail(problem, able, order).walk(steps // 3)
        if home is not None:
            return home
    return None


class _Trail:
    """Depth first over the tasks, with what every step has changed, so that it can be taken back."""

    def __init__(self, problem: Problem, able: dict[int, list[int]], order: Sequence[int]) -> None:
        self.problem, self.able, self.order = problem, able, order
        self.home: dict[int, int] = {}
        self.room = list(problem.caps)
        self.left = [0] * len(problem.tasks)
        self.sources = [
            [] if task in problem.backward else [source for source, _ in before if source not in problem.backward]
            for task, before in enumerate(problem.before)
        ]
        self.new: list[bool] = []

    def walk(self, steps: int) -> dict[int, int] | None:
        """The homes after all tasks; ``None`` if there are none, or none within so many steps."""
        last = len(self.problem.tasks)
        ways = [self.ways(0)]
        for _ in range(steps + last):
            chosen = next(ways[-1], None)
            if chosen is not None:
                self.go(len(ways) - 1, chosen)
                if len(ways) == last:
                    return self.home
                ways.append(self.ways(len(ways)))
            else:
                ways.pop()
                if not ways:
                    return None
                self.back(len(ways) - 1)
        return None

    def ways(self, task: int) -> Iterator[int]:
        """Where a task may go: first where its latest predecessors are, then by the order of the processors."""
        group = self.problem.group_of[task]
        need = self.problem.demand[group]
        where = [self.home[self.problem.group_of[source]] for source in self.sources[task][::-1]]
        fixed = self.home.get(group)
        for each in dict.fromkeys([*where, *self.order]) if fixed is None else (fixed,):
            fits = fixed is not None or (need <= self.room[each] and each in self.able[group])
            if fits and not self.left_by(task, each) >> each & 1:
                yield each

    def left_by(self, task: int, processor: int) -> int:
        """The processors, as bits, that paths to a task on ``processor`` have left."""
        left = 0
        for source in self.sources[task]:
            home = self.home[self.problem.group_of[source]]
            left |= self.left[source] | (1 << home if home != processor else 0)
        return left

    def go(self, task: int, processor: int) -> None:
        """Put a task on a processor."""
        group = self.problem.group_of[task]
        self.new.append(group not in self.home)
        if self.new[-1]:
            self.home[group] = processor
            self.room[processor] -= self.problem.demand[group]
        self.left[task] = self.left_by(task, processor)

    def back(self, task: int) -> None:
        """Take back what `go` did for the last task."""
        group = self.problem.group_of[task]
        if self.new.pop():
            self.room[self.home.pop(group)] += self.problem.demand[group]
