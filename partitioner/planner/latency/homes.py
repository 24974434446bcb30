"""Homes under tight rules: where greedy choices would run into a dead end, first find one answer, then never leave one.

    memory 6 and 6, demand 3 3 2 2 2    the two of 3 must go together: apart, they leave 3 and 3, and one of 2 has no room
    contiguous, a -> b -> c, a and c in one group: b has no choice, which is known before b is placed (`closed`)

*Certificate*: a processor for every group that keeps all rules. A task may leave its certificate's processor only for one
where the certificate, with one group moved or two exchanged, still keeps them (`Careful`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from networkx.utils import UnionFind

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.planner.feasible import Feasible, between
from partitioner.planner.throughput.fitting import certificate

T = TypeVar("T")


@dataclass
class Homes:
    """Gives each try a fresh `Feasible`, and one that knows a certificate if it fails without.

    Each try begins without: a certificate leaves far less choice, and one way of placing tasks may run into a dead end that
    others do not know.

    Args:
        problem: what is placed.
        known: the certificate, by group.
    """

    problem: Problem
    known: dict[int, int] | None = field(default=None)

    def run(self, build: Callable[[Feasible], T]) -> T:
        """What ``build`` makes with the rules it is given.

        Raises:
            PlacementError: no answer was found.
        """
        try:
            return build(Feasible(self.problem))
        except PlacementError:
            self.known = self.known or certificate(self.problem)
            if self.known is None:
                raise
        return build(Careful(self.problem, self.known))


class Careful(Feasible):
    """`Feasible`, but a task goes only where the rest can still go; a certificate that is kept up to date shows it."""

    def __init__(self, problem: Problem, known: dict[int, int]) -> None:
        super().__init__(problem)
        self.known = dict(known)
        self.load = [0.0] * len(problem.processors)
        self.at: list[set[int]] = [set() for _ in problem.processors]
        for group, processor in known.items():
            self.load[processor] += problem.demand[group]
            self.at[processor].add(group)
        self.placed: set[int] = set()

    def processors(self, task: int) -> Sequence[int]:
        """The processors that ``task`` may go to; never none."""
        group = self.problem.group_of[task]
        known = self.known[group]
        if group in self.placed or self.problem.contiguous:
            return (known,)
        return [each for each in self.able[group] if each == known or self._change(group, each) is not None]

    def assign(self, task: int, processor: int) -> None:
        """Note that ``task`` goes to ``processor``, and change the certificate so that it does."""
        group = self.problem.group_of[task]
        if group not in self.placed:
            if processor != self.known[group]:
                for one, there in self._change(group, processor) or ():
                    self._move(one, there)
            self.placed.add(group)

    def _change(self, group: int, processor: int) -> list[tuple[int, int]] | None:
        """What must move for ``group`` to go to ``processor``: itself, perhaps one other; ``None`` if that is not enough."""
        demand, here = self.problem.demand, self.known[group]
        need = demand[group]
        room = self.problem.caps[processor] - self.load[processor]
        if need <= room:
            return [(group, processor)]
        back = self.problem.caps[here] - self.load[here] + need
        for other in self.at[processor]:
            if other not in self.placed and need <= room + demand[other] and demand[other] <= back and here in self.able[other]:
                return [(group, processor), (other, here)]
        return None

    def _move(self, group: int, processor: int) -> None:
        here, need = self.known[group], self.problem.demand[group]
        self.at[here].discard(group)
        self.at[processor].add(group)
        self.load[here] -= need
        self.load[processor] += need
        self.known[group] = processor


def closed(problem: Problem) -> Problem:
    """The problem with every group grown by what contiguity forces into it: what lies on a path between two of its tasks.

    Groups that have one processor in common as their only one count as one. Other problems come back as they are.

    >>> from partitioner.ir.problem import ORDER, Kind, Problem, Processor
    >>> chain = [(0, 1, ORDER), (1, 2, ORDER)]
    >>> both = (Processor("a", 0), Processor("b", 0))
    >>> rules = {"group": [0, 1, 0], "contiguous": True}
    >>> closed(Problem("chain", ("x", "y", "z"), (Kind("cpu", {1: [1.0] * 3}),), both, chain, **rules)).group
    [0, 0, 0]
    """
    while problem.contiguous:
        together: UnionFind[int] = UnionFind(problem.members)
        for one, other in _forced(problem):
            together.union(one, other)
        if all(together[group] == group for group in problem.members):
            break
        pin: dict[int, int] = {}
        for group, processor in problem.pin.items():
            if pin.setdefault(together[group], processor) != processor:
                first = problem.tasks[problem.members[group][0]]
                raise PlacementError(f"contiguous parts and pins exclude each other at task {first}: it lies between two pins")
        problem = replace(problem, group=[together[group] for group in problem.group_of], pin=pin)
    return problem


def _forced(problem: Problem) -> Iterator[tuple[int, int]]:
    """Pairs of groups that must share a processor."""
    only: dict[int, int] = {}
    for group in problem.members:
        able = problem.able[group]
        if len(able) == 1 and only.setdefault(able[0], group) != group:
            yield only[able[0]], group
    yield from between(problem, problem.group_of)
