"""What it costs processors that a value leaves one and goes to others, and which processors are alike.

Loads are kept in *slots*: a processor has one where computing and moving do not overlap, and three where they do (computing,
sending, receiving), of which the fullest counts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partitioner.ir.problem import Problem
from partitioner.planner.feasible import bits
from partitioner.planner.prices import least_paid, owed, rents, wasted
from partitioner.planner.throughput.units import Floats, Units

ALIKE, MOSTLY = 1.01, 0.5
"""How many times as much a unit pays on another processor if these are no longer alike to it; and part of the units."""

Charge = tuple[int, float, float]
"""A slot, and what is added to it for each value and for each byte."""


class Prices:
    """The charges for values on their way, by the processor that makes them and the set of those that read them, as bits."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._known: dict[tuple[int, int], tuple[Charge, ...]] = {}

    def charges(self, home: int, there: int) -> tuple[Charge, ...]:
        """What a value costs that is made on ``home`` and read on ``there``, a set of processors as bits."""
        there &= ~(1 << home)
        key = (home, there)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._charges(home, there)
        return found

    def _charges(self, home: int, there: int) -> tuple[Charge, ...]:
        problem = self.problem
        passed = dict.fromkeys(channel for each in bits(there) for channel in problem.routes.get((home, each), ()))
        sums: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for number in passed:
            channel = problem.channels[number]
            for end in channel.ends:
                slot = 3 * end + (0 if not problem.overlap else 1 if end == home else 2)
                sums[slot][0] += channel.latency
                sums[slot][1] += 1.0 / channel.bandwidth
        return tuple((slot, each, byte) for slot, (each, byte) in sums.items() if each or byte)


@dataclass(frozen=True)
class Alike:
    """Processors that any answer may exchange for each other, and what a value costs at one of them.

    Args:
        processors: their numbers.
        sends: seconds for each value and for each byte that leave one of them for any others, on average.
        receives: likewise for what comes from anywhere.
        least: both, where the other end is that at which each costs the least.
    """

    processors: tuple[int, ...]
    sends: tuple[float, float]
    receives: tuple[float, float]
    least: Floats


@dataclass(frozen=True, eq=False)
class Park:
    """The processors of a problem, those that are alike together."""

    units: Units
    prices: Prices

    @cached_property
    def by_itself(self) -> bool:
        """Whether what moving costs at a processor depends on that processor alone, as it does with links to the host."""
        count = len(self.units.problem.processors)
        return all(
            len({self._half(here, there, sending) for there in range(count) if there != here}) <= 1
            for here in range(count)
            for sending in (True, False)
        ) and not any(self._bystanders(here, there) for here in range(count) for there in range(count) if here != there)

    def _half(self, here: int, there: int, sending: bool) -> frozenset[int]:
        """The channels between two processors that ``here`` takes part in."""
        problem = self.units.problem
        route = problem.routes.get((here, there) if sending else (there, here), ())
        return frozenset(channel for channel in route if here in problem.channels[channel].ends)

    def _bystanders(self, here: int, there: int) -> bool:
        problem = self.units.problem
        ends = {end for channel in problem.routes.get((here, there), ()) for end in problem.channels[channel].ends}
        return bool(ends - {here, there})

    @cached_property
    def _passages(self) -> Floats:
        """By processor, way out or in, and each other one: seconds for each value and byte at its end of a passage."""
        problem, count = self.units.problem, len(self.units.problem.processors)
        costs = [(each.latency, 1.0 / each.bandwidth) for each in problem.channels]
        places, paid = list[int](), list[tuple[float, float]]()
        for (here, there), route in problem.routes.items():
            for number in dict.fromkeys(route):
                ends = problem.channels[number].ends
                ours = [2 * here * count + there] * (here in ends) + [(2 * there + 1) * count + here] * (there in ends)
                places += ours
                paid += [costs[number]] * len(ours)
        found = np.zeros((count, 2, count, 2))
        np.add.at(found.reshape(-1, 2), places, np.array(paid).reshape(-1, 2))
        others = found.transpose(0, 2, 1, 3)[~np.eye(count, dtype=bool)].reshape(count, count - 1, 2, 2)
        return others.transpose(0, 2, 1, 3) if count > 1 else np.zeros((count, 2, 1, 2))

    @cached_property
    def classes(self) -> list[Alike]:
        """Processors of one kind, with the same lanes, memory and prices, to none of which a unit is pinned; others alone."""
        problem, found = self.units.problem, defaultdict[object, list[int]](list)
        pinned, least = set(self.units.pins.values()), self._passages.min(axis=2)
        means = [[float(f"{each:.12g}") for each in row] for row in self._passages.mean(axis=2).reshape(-1, 4).tolist()]
        for number, each in enumerate(problem.processors):
            table = id(problem.seconds[number])
            alone = number if number in pinned else -1
            found[table, each.lanes, each.memory, *means[number], alone].append(number)
        ends = ((numbers, means[numbers[0]]) for numbers in found.values())
        return [Alike(tuple(each), (way[0], way[1]), (way[2], way[3]), least[each].min(axis=0)) for each, way in ends]

    @cached_property
    def apart(self) -> bool:
        """Whether prices alone say where most units should be: no two processors are alike, nor to a unit its two best."""
        if len(self.classes) < (count := len(self.units.problem.processors)):
            return False
        least, next_ = np.partition(self.paid, 1, axis=0)[:2] if count > 1 else (np.zeros(1), np.ones(1))
        return bool(np.mean(next_ > least * ALIKE) >= MOSTLY)

    @cached_property
    def interchangeable(self) -> list[tuple[int, ...]]:
        """Sets of processors that may be renamed without changing any load: what a search need not tell apart."""
        if self.by_itself:
            return [each.processors for each in self.classes]
        return [(number,) for each in self.classes for number in each.processors]

    @cached_property
    def rents(self) -> tuple[Floats, Floats]:
        """Prices of a second and of a byte of each processor, at which what all units pay is large."""
        seconds = self.units.seconds
        return rents(seconds, np.ones(len(seconds)), self.units.memory, np.array(self.units.problem.caps))

    @cached_property
    def paid(self) -> Floats:
        """What each unit pays on each processor, at these prices."""
        price, rent = self.rents
        return owed(self.units.seconds, price, self.units.memory, rent)

    @cached_property
    def least_paid(self) -> tuple[float, list[list[float]]]:
        """Seconds that no placement beats, and how many more, by unit and processor, if the unit runs there.

        They add up: a placement's largest load is no less than the first and, for each of its units, the second.
        """
        seconds, held, room = self.units.seconds, self.units.memory, np.array(self.units.problem.caps)
        more: list[list[float]] = wasted(self.paid).tolist()
        return least_paid(seconds, held, room, *self.rents), more

    @cached_property
    def waste(self) -> list[list[float]]:
        """By unit and processor, the seconds that all lose if the unit runs there; empty where none differs from another."""
        rows = self.units.rows
        if len(set(map(id, rows))) == 1:
            return []
        return [[each * len(rows) for each in row] for row in self.least_paid[1]]

    def flow_seconds(self, each: float, byte: float) -> Floats:
        """Seconds of every flow at a price."""
        flows = self.units.flows
        return np.array([each * flow.count + byte * flow.size for flow in flows], dtype=float)


def park_of(units: Units) -> Park:
    """The processors of a problem, with what moving costs."""
    return Park(units, Prices(units.problem))
