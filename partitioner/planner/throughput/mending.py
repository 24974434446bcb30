"""A placement that is nearly contiguous made so: what lies between the tasks of a processor joins it, or some of them leave.

    x | a   c   e      b and d lie between tasks of x
    y |   b   d        b and d to x;  or a to y;  or e to y: whichever costs least and leaves the least between others

What is made small is what all pay, and a price for each task that lies between others, which rises while there are any.

Source of infeasible answers at a price: Gendreau, Hertz and Laporte, "A tabu search heuristic for the vehicle routing problem",
Management Science 40(10), 1994.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from random import Random

from partitioner.planner.feasible import bits
from partitioner.planner.throughput.convex import Convex
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park

STEPS = 400
"""Changes after which it is given up."""

LARGEST = 64
"""Units that may leave a processor at once."""

RISING = 50
"""Changes after which a task between others costs twice as much as at first."""


def mended(park: Park, homes: Sequence[int], price: Sequence[float]) -> list[int] | None:
    """Homes near those given that are contiguous; ``None`` if no such were found.

    Args:
        park: units, each with all that lies between its tasks, and processors.
        homes: of each unit; memory is kept if these keep it.
        price: of a second of each processor.
    """
    if park.units.reach is None:
        return None
    mending = _Mending(park, homes, price)
    for step in range(STEPS):
        broken = [each for each, between in enumerate(mending.between) if between]
        if not broken:
            return list(mending.loads.home)
        mending.step(broken, 1.0 + step / RISING)
    return None


class _Mending:
    """Where units are, and the tasks between those of each processor, as bits."""

    def __init__(self, park: Park, homes: Sequence[int], price: Sequence[float]) -> None:
        self.units, self.price, self.random = park.units, price, Random(0)
        self.loads, self.state = Loads(park, homes), Convex(park.units, homes)
        self.between = [self.state.between(units) for units in self.state.units]
        paid = sum(each * self.loads.load(number) for number, each in enumerate(price))
        self.one = paid / max(1, park.units.count)  # what a unit pays on average

    def step(self, broken: Sequence[int], dear: float) -> None:
        """Make the best change because of one task that lies between those of a processor."""
        here = self.random.choice(broken)
        inside = list(dict.fromkeys(self.units.unit_of[task] for task in bits(self.between[here])))
        best, chosen, found = inf, dict[int, int](), dict[int, float]()
        for moves in self._ways(here, inside):
            deltas = self.loads.joint_deltas(moves)
            more = sum(self._after(each, moves).bit_count() - self.between[each].bit_count() for each in self._touched(moves))
            paid = sum(self.price[slot // 3] * each for slot, each in deltas.items())
            paid += self.one * (dear * more + self.random.random() / 8)
            if paid < best:
                best, chosen, found = paid, moves, deltas
        self._make(chosen, found)

    def _ways(self, here: int, inside: Sequence[int]) -> Iterator[dict[int, int]]:
        """What lies between joins, one unit or all; or those that lead to one such unit leave, or those that it leads to."""
        reach, unit = self.units.reach, self.random.choice(inside)
        assert reach is not None
        ways = [([unit], here), (inside, here)]
        for side in (reach.before[unit], reach.after[unit]):
            leaving = [each for each in self.state.units[here] if reach.own[each] & side]
            if len(leaving) <= LARGEST:
                ways += [(sorted(leaving), there) for there in range(len(self.between)) if there != here]
        for some, there in ways:
            moves = {each: there for each in some if self.loads.home[each] != there}
            held = sum(self.loads.memory[each] for each in moves)
            fits = not held or self.loads.used[there] + held <= self.units.problem.caps[there]
            if moves and fits and all(there in self.units.able_sets[each] for each in moves):
                yield moves

    def _touched(self, moves: Mapping[int, int]) -> set[int]:
        """The processors that units leave or join."""
        return {self.loads.home[unit] for unit in moves} | set(moves.values())

    def _after(self, processor: int, moves: Mapping[int, int]) -> int:
        """The tasks between those that a processor has after some moves."""
        stay = self.state.units[processor].difference(moves)
        return self.state.between(stay.union(unit for unit, there in moves.items() if there == processor))

    def _make(self, moves: Mapping[int, int], deltas: Mapping[int, float]) -> None:
        touched, homes = self._touched(moves), {unit: self.loads.home[unit] for unit in moves}
        self.loads.move_all(moves, deltas)
        for unit, there in moves.items():
            self.state.leave((unit,), homes[unit])
            self.state.join(unit, there)
        for each in touched:
            self.between[each] = self.state.between(self.state.units[each])
