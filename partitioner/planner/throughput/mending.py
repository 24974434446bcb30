"""A placement that is nearly contiguous made so: what lies between the tasks of a processor joins it, or some of them leave.

    x | a   c . . . . e      b, d and all that follows lie between tasks of x
    y |   b   d . . .        a to y, or e to y: one unit, and nothing lies between others any more

One misplaced unit leaves hundreds between it and its processor's others, and these could as well join. So changes of one unit
are made first, those of two where there are none, of four, and so on; of as many, the one for which all pay least.

Source of changes by size: Hansen and Mladenovic, "Variable neighborhood search: principles and applications", European Journal
of Operational Research 130(3), 2001.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from math import inf
from random import Random
from time import monotonic

from partitioner.planner.feasible import bits
from partitioner.planner.throughput.convex import Convex
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park

LOOKS = 1_000
"""Tasks between others that are looked at before it is given up."""

PATIENCE = 6
"""Tasks in a row for which no change is found, after which changes may be twice as large."""

STUCK = 50
"""Tasks in a row for which no change is found, after which one is made that leaves as much between others, or more."""


def mended(park: Park, homes: Sequence[int], price: Sequence[float], firm: bool = True, until: float = inf) -> list[int] | None:
    """Homes near those given that are contiguous; ``None`` if no such were found.

    Args:
        park: units, each with all that lies between its tasks, and processors.
        homes: of each unit.
        price: of a second of each processor.
        firm: whether memory is kept, if ``homes`` keep it; else what does not fit has a price.
        until: moment, by the monotonic clock, at which to give up.
    """
    if park.units.reach is None:
        return None
    mending, largest, idle = _Mending(park, homes, price, firm), 1, 0
    for _ in range(LOOKS):
        broken = [each for each, between in enumerate(mending.between) if between]
        if not broken:
            return list(mending.loads.home)
        if monotonic() > until:
            break
        stuck = idle > STUCK
        idle = 0 if mending.step(broken, largest, -inf if stuck else 1) else idle + 1
        if stuck:
            largest = 1
        elif idle and not idle % PATIENCE:
            largest = 2 * largest
    return None


class _Mending:
    """Where units are, and the tasks between those of each processor, as bits."""

    def __init__(self, park: Park, homes: Sequence[int], price: Sequence[float], firm: bool) -> None:
        self.units, self.price, self.firm, self.random = park.units, price, firm, Random(0)
        self.loads, self.state = Loads(park, homes), Convex(park.units, homes)
        self.between = [self.state.between(each) for each in range(len(self.state.units))]
        paid = sum(each * self.loads.load(number) for number, each in enumerate(price))
        self.per_byte = park.units.count / max(1e-300, float(park.units.memory.sum()))  # bytes count as mean units'
        self.one = paid / max(1, park.units.count)  # what a unit pays on average

    def step(self, broken: Sequence[int], largest: int, least: float) -> bool:
        """Make the best change, of so many units at most; whether there was one.

        Args:
            broken: processors with tasks between their own.
            largest: units that may change.
            least: how many fewer tasks lie between others afterwards.
        """
        here, best, chosen, found = self.random.choice(broken), inf, dict[int, int](), dict[int, float]()
        left = cache(partial(self._fewer, coming=()))  # asked for each processor that units could go to
        for units, there in self._ways(here, self.random.choice(bits(self.between[here])), largest):
            homes = {self.loads.home[unit] for unit in units}
            fewer = self._fewer(there, coming=units) + sum(left(each, going=units) for each in homes)
            if fewer >= least and self._may(units, there):
                moves = dict.fromkeys(units, there)
                deltas = self.loads.joint_deltas(moves)
                paid = sum(self.price[slot // 3] * each for slot, each in deltas.items())
                paid += self.one * (self.loads.beyond(moves) * self.per_byte - fewer)
                if paid < best:
                    best, chosen, found = paid, moves, deltas
        self._make(chosen, found)
        return bool(chosen)

    def _ways(self, here: int, task: int, largest: int) -> Iterator[tuple[tuple[int, ...], int]]:
        """What lies between joins, all or a task's unit; or those that lead to it leave, or those that it leads to."""
        reach, unit = self.units.reach, self.units.unit_of[task]
        assert reach is not None
        yield (unit,), here
        if self.between[here].bit_count() <= largest:
            yield tuple(dict.fromkeys(self.units.unit_of[each] for each in bits(self.between[here]))), here
        for side in (reach.before[unit], reach.after[unit]):
            leaving = tuple(sorted(each for each in self.state.units[here] if reach.own[each] & side))
            if len(leaving) <= largest:
                yield from ((leaving, there) for there in range(len(self.between)) if there != here)

    def _may(self, units: Sequence[int], there: int) -> bool:
        """Whether units may go to a processor, and have room there if memory is kept."""
        held = sum(self.loads.memory[each] for each in units) if self.firm else 0.0
        fits = not held or self.loads.used[there] + held <= self.units.problem.caps[there]
        return fits and all(there in self.units.able_sets[each] for each in units)

    def _fewer(self, processor: int, coming: Sequence[int] = (), going: Sequence[int] = ()) -> int:
        """How many fewer tasks lie between those of a processor once units have come or gone."""
        return self.between[processor].bit_count() - self.state.between(processor, coming, going).bit_count()

    def _make(self, moves: Mapping[int, int], deltas: Mapping[int, float]) -> None:
        homes = {unit: self.loads.home[unit] for unit in moves}
        self.loads.move_all(moves, deltas)
        for unit, there in moves.items():
            self.state.leave((unit,), homes[unit])
            self.state.join(unit, there)
        for each in {*homes.values(), *moves.values()}:
            self.between[each] = self.state.between(each)
