"""Simulated annealing of placements: units move, or two change places, as pins, memory and contiguity allow.

The largest load says nothing about most moves, so the search makes small the sum of a high power of all loads, for which the
largest counts most and every other one a little.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import exp, inf
from time import monotonic

from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park

POWER = 16
"""Of the loads in the energy; the highest load counts as much as two that are 4 % lower."""

WARM, COLD = 0.3, 1e-4
"""Energies that a worse move may add at the beginning and at the end of a round; 1 is a processor with the largest load."""


class Convex:
    """Keeps each processor's forward tasks convex: as bits, its own tasks, those that follow and those that come before."""

    def __init__(self, park: Park, homes: Sequence[int]) -> None:
        units, count = park.units, len(park.units.problem.processors)
        self.reach, self.asked = units.reach, units.contiguous
        self.units: list[set[int]] = [set() for _ in range(count)]
        self.own, self.after, self.before = [0] * count, [0] * count, [0] * count
        for unit, home in enumerate(homes):
            self.units[home].add(unit)
        if self.reach is not None:
            for processor in range(count):
                self._count(processor)

    def _count(self, processor: int) -> None:
        own = after = before = 0
        assert self.reach is not None
        for unit in self.units[processor]:
            own, after, before = own | self.reach.own[unit], after | self.reach.after[unit], before | self.reach.before[unit]
        self.own[processor], self.after[processor], self.before[processor] = own, after, before

    def may_leave(self, unit: int, here: int) -> bool:
        """Whether a unit is not on a path between two others of its processor."""
        reach = self.reach
        if reach is None:
            return not self.asked
        others = self.own[here] & ~reach.own[unit]
        return not (reach.after[unit] & others and reach.before[unit] & others)

    def may_join(self, unit: int, there: int) -> bool:
        """Whether a processor stays convex with a further unit."""
        reach = self.reach
        if reach is None:
            return not self.asked
        after, before = self.after[there] | reach.after[unit], self.before[there] | reach.before[unit]
        return not after & before & ~(self.own[there] | reach.own[unit])

    def join(self, unit: int, there: int) -> None:
        """Note that a unit has come."""
        self.units[there].add(unit)
        if self.reach is not None:
            self.own[there] |= self.reach.own[unit]
            self.after[there] |= self.reach.after[unit]
            self.before[there] |= self.reach.before[unit]

    def leave(self, unit: int, here: int) -> None:
        """Note that a unit has gone."""
        self.units[here].discard(unit)
        if self.reach is not None:
            self._count(here)

    @property
    def holds(self) -> bool:
        """Whether every processor is convex."""
        together = zip(self.own, self.after, self.before, strict=True)
        return self.reach is None or not any(after & before & ~own for own, after, before in together)


class Annealing:
    """A walk from one placement to the next, and the best that it has seen.

    Args:
        park: the units and processors.
        homes: a valid placement to begin with.
        seed: of all that is chosen at random.
    """

    def __init__(self, park: Park, homes: Sequence[int], seed: int = 0) -> None:
        self.park, self.units = park, park.units
        self.caps = [each.memory for each in park.units.problem.processors]
        self.able = park.units.able_sets
        self.movable = [unit for unit, each in enumerate(park.units.able) if len(each) > 1]
        self.random = random.Random(seed)
        self.best, self.least = list(homes), inf
        self._restart()

    def _restart(self) -> None:
        """Go back to the best placement, and count its loads anew."""
        self.loads, self.convex = Loads(self.park, self.best), Convex(self.park, self.best)
        self.least = self.scale = self.loads.largest

    def take(self, homes: Sequence[int]) -> bool:
        """Go on from another placement if it is valid and better; whether it was."""
        if not homes or not self.units.valid(homes) or Loads(self.park, homes).largest >= self.least * (1 - 1e-12):
            return False
        self.best = list(homes)
        self._restart()
        return True

    def run(self, until: float, rounds: int, steps: int, warm: float = WARM, enough: float = 0.0) -> None:
        """Anneal from the best placement, several times.

        Args:
            until: moment, by the monotonic clock, at which to stop.
            rounds: how often to warm up and cool down.
            steps: moves that are tried in each round.
            warm: energy that a worse move may add at first.
            enough: a largest load that cannot be beaten.
        """
        if not self.movable or self.least <= 0.0 or len(self.caps) < 2:
            return None
        for _ in range(rounds):
            for step in range(steps):
                if not step % 64 and (monotonic() > until or self.least <= enough * (1 + 1e-9)):
                    return self._restart()
                self._step(warm * (COLD / warm) ** (step / steps))
            self._restart()
        return None

    def _step(self, temperature: float) -> None:
        choose = self.random.random
        unit = self.movable[int(choose() * len(self.movable))]
        there = self._target(unit)
        here = self.loads.home[unit]
        if there == here or there not in self.able[unit] or not self.convex.may_leave(unit, here):
            return
        if choose() < 0.25:
            self._swap(unit, here, there, temperature)
        elif self._fits(unit, there) and self.convex.may_join(unit, there):
            deltas = self.loads.deltas(unit, there)
            if self._accept(self._energy(deltas), temperature):
                self._move(unit, here, there, deltas)
                self._note()

    def _target(self, unit: int) -> int:
        """Where a flow of the unit comes from or goes to, mostly; otherwise anywhere."""
        choose, loads = self.random.random, self.loads
        flows = loads.touching[unit]
        if flows and choose() < 0.8:
            flow = self.units.flows[flows[int(choose() * len(flows))]]
            other = flow.readers[int(choose() * len(flow.readers))] if flow.maker == unit or choose() < 0.3 else flow.maker
            return loads.home[other]
        return int(choose() * len(self.caps))

    def _swap(self, unit: int, here: int, there: int, temperature: float) -> None:
        """Try to exchange a unit with one of the processor that it goes to."""
        others = self._partners(unit, here, there)
        if not others:
            return
        other = others[int(self.random.random() * len(others))]
        energy = self._energy(deltas := self.loads.deltas(unit, there))
        self._move(unit, here, there, deltas)
        if here in self.able[other] and self.convex.may_leave(other, there):
            energy += self._energy(deltas := self.loads.deltas(other, here))
            self._move(other, there, here, deltas)
            full = any(self.loads.used[each] > self.caps[each] for each in (here, there))
            if not full and self.convex.holds and self._accept(energy, temperature):
                return self._note()
            self._move(other, here, there, None)
        self._move(unit, there, here, None)
        return None

    def _partners(self, unit: int, here: int, there: int) -> Sequence[int]:
        """Units of one processor that have to do with one that comes, or else some of them."""
        near = {each for number in self.loads.touching[unit] for each in self.units.flows[number].readers}
        near |= {self.loads.flows[number][0] for number in self.loads.touching[unit]}
        near &= self.convex.units[there]
        if near and self.random.random() < 0.5:
            return sorted(near)
        return tuple(self.convex.units[there])

    def _move(self, unit: int, here: int, there: int, deltas: dict[int, float] | None) -> None:
        self.loads.move(unit, there, deltas)
        self.convex.leave(unit, here)
        self.convex.join(unit, there)

    def _fits(self, unit: int, there: int) -> bool:
        return self.loads.used[there] + self.loads.memory[unit] <= self.caps[there]

    def _energy(self, deltas: dict[int, float]) -> float:
        """What the energy would change by."""
        slots, scale, total = self.loads.slots, self.scale, 0.0
        for processor in {slot // 3 for slot in deltas}:
            first = 3 * processor
            old = max(slots[first : first + 3])
            new = max(slots[slot] + deltas.get(slot, 0.0) for slot in range(first, first + 3))
            total += (max(new, 0.0) / scale) ** POWER - (max(old, 0.0) / scale) ** POWER
        return total

    def _accept(self, energy: float, temperature: float) -> bool:
        return energy <= 0.0 or (energy < 40.0 * temperature and self.random.random() < exp(-energy / temperature))

    def _note(self) -> None:
        largest = self.loads.largest
        if largest < self.least * (1 - 1e-12):
            self.least, self.best = largest, list(self.loads.home)
