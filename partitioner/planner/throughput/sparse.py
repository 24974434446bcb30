"""Annealing to placements in which little travels and loads are about even: where one call is to be short, not many.

    x | a b c     largest load 9, all loads 17        for throughput the first is better; in one call, where one processor
    y | d e       largest load 10, all loads 14       mostly waits for another one, the second one is

The sum of a low power of the loads is made small, and not the largest one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from math import inf

from partitioner.ir.problem import Problem
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.prices import park_of
from partitioner.planner.throughput.search import Annealing

POWER = 4
"""Of loads. With 1, all goes where there is room; with 10 and more, only the largest load counts."""

ROUNDS, MOVES = 4, 3_000
"""Of annealing, and moves of each; a hundred milliseconds or two."""


def sparse(problem: Problem, homes: Sequence[int], until: float = inf) -> list[int]:
    """The processor of each task, from the given ones on, within memory; contiguity is not looked at.

    Args:
        problem: in which values travel; whatever it says of that, who sends or receives is taken to stand still.
        homes: the processor of each task, to begin with.
        until: moment, by the monotonic clock, at which to stop; infinite: moves are counted.
    """
    units = units_of(replace(problem, objective="throughput", overlap=False), contiguous=False)
    search = _Sparse(park_of(units), units.of_tasks(homes))
    search.run(until, ROUNDS, MOVES)
    return units.spread_over(search.best)


class _Sparse(Annealing):
    """A walk to small sums of powers of loads."""

    def _restart(self) -> None:
        super()._restart()
        self.powers, self.scale = cycle((POWER,)), max(1e-300, sum(self.loads.slots) / len(self.caps))
        self.least = inf if self._full else self._sum

    @property
    def _sum(self) -> float:
        return sum((self.loads.load(each) / self.scale) ** POWER for each in range(len(self.caps)))

    def _note(self) -> None:
        if not self._full and (found := self._sum) < self.least * (1 - 1e-12):
            self.least, self.best = found, list(self.loads.home)
