"""Annealing from placements that are not contiguous to some that nearly are: what lies between a processor's units has a price.

    x | a b . . e     c and d lie between: a fee, which grows from round to round; so e leaves, or c and d come
    y |     c d

No step from one contiguous placement to the next leads past those that are not; with a fee, steps do.

Source: Gendreau, Hertz and Laporte, "A tabu search heuristic for the vehicle routing problem", Management Science 40(10), 1994
(infeasible answers on the way, at a price).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt

from partitioner.planner.throughput.convex import Convex
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.search import Annealing, moment
from partitioner.planner.throughput.units import Units

FEES = (0.3, 1.0, 3.0, 10.0)
"""Of a round each: energy of a processor with all tasks between its own; of a quarter of them, half as much."""


class Nearly(Annealing):
    """A walk to placements of even loads that are contiguous, or nearly so.

    Args:
        closed: units that are convex, and processors.
        homes: a placement to begin with, contiguous or not; memory is kept if it is there.
        seed: of all that is chosen at random.
    """

    def __init__(self, closed: Park, homes: Sequence[int], seed: int = 0) -> None:
        self.fee, self.closed, self.tasks = FEES[0], closed.units, max(1, len(closed.units.unit_of))
        self.apart, self.trial = list[float](), dict[int, float]()
        super().__init__(park_of(Units(closed.units.problem, False, closed.units.unit_of)), homes, seed)

    def walk(self, until: float, steps: int) -> list[int]:
        """The homes after a round of so many steps for each fee, which share the time."""
        for left, self.fee in zip(range(len(FEES), 0, -1), FEES, strict=True):
            self._restart()
            self.run(moment(until, left), 1, steps)
        return self.best

    def _restart(self) -> None:
        super()._restart()
        self.convex = Convex(self.closed, self.best)
        self.apart = [self._torn(each) for each in range(len(self.convex.units))]
        self.least = self._cost

    def _torn(self, processor: int, coming: Sequence[int] = (), going: Sequence[int] = ()) -> float:
        """How far a processor is from being convex: 0 to 1. One unit more often leaves hundreds between, hence the root."""
        return sqrt(self.convex.between(processor, coming, going).bit_count() / self.tasks)

    def _convex(self, *_: object) -> bool:
        return True  # or at a price

    @property
    def _cost(self) -> float:
        return self.loads.largest / self.scale + self.fee * sum(self.apart) if self.scale > 0.0 else 0.0

    def _fee(self, moves: Mapping[int, int]) -> float:
        coming, going = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for unit, there in moves.items():
            coming[there].append(unit)
            going[self.loads.home[unit]].append(unit)
        self.trial = {each: self._torn(each, coming[each], going[each]) for each in coming.keys() | going.keys()}
        return super()._fee(moves) + self.fee * sum(torn - self.apart[each] for each, torn in self.trial.items())

    def _note(self) -> None:
        for each, torn in self.trial.items():
            self.apart[each] = torn
        if self._cost < self.least * (1 - 1e-12) and not self._full:
            self.least, self.best = self._cost, list(self.loads.home)
