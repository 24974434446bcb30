"""Simulated annealing of placements: pieces move, or two are exchanged, as pins, memory and contiguity allow.

    x   a > b > c > d > e       a piece: units of one processor that hang together, here b c d, or a single one
    y   f > g > h > i           b c d <-> g h: they take about as long, so loads stay even while other ends are cut

Units that hang together are dear to part, so a search that moves them one by one must first make the answer worse, often many
times. The largest load says nothing about most moves, so what is made small is the sum of a power of all loads, for which
the largest counts most and every other one a little. A high power sees the last percent, and is blind for what would have to
become worse first; a low one sees across. So each round has another power than the one before it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import cycle
from math import exp, inf
from time import monotonic

from partitioner.planner.throughput.convex import Convex
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.overfull import Price
from partitioner.planner.throughput.prices import Park

POWERS = (10, 20, 40, 80)
"""Of the loads in the energy, by turns; with the last one, the highest load counts as much as two that are 1 % lower."""

WARM, COLD = 1.0, 1e-3
"""Energies that a worse move may add at the beginning and at the end of a round; 1 is a processor with the largest load."""

TOGETHER = 64
"""Moves that are made between two looks at the time."""

SWAP = 0.75
"""Part of all moves that bring a piece back."""

SINGLE = 0.8
"""Part of all moves that take one unit where memory may run out: a larger piece seldom finds room."""

LARGEST = 64
"""Units of a piece."""

WALK = 16
"""Steps towards the first or last units of a processor, after which a piece of them is given up."""


def moment(until: float, left: int) -> float:
    """The moment, by the monotonic clock, when one of so many equal parts of the time that is left will be over."""
    return until if until == inf else monotonic() + (until - monotonic()) / left


class Annealing:
    """A walk from one placement to the next, the best that it has seen, and the last one of its last round.

    Args:
        park: the units and processors.
        homes: a placement to begin with, valid but for memory: if it does not fit, `least` is infinite until one is found.
        seed: of all that is chosen at random.
    """

    def __init__(self, park: Park, homes: Sequence[int], seed: int = 0) -> None:
        self.park, self.units = park, park.units
        self.caps, held = park.units.problem.caps, float(park.units.memory.sum())
        self.crowded, self.price = held > min(self.caps), Price(self.units.count / max(1e-300, held))
        self.able = park.units.able_sets
        self.movable = [unit for unit, each in enumerate(park.units.able) if len(each) > 1]
        self.random, self.powers, self.power = random.Random(seed), cycle(POWERS), POWERS[-1]
        self.best, self.last, self.least = list(homes), list(homes), inf
        self._restart()

    def _restart(self) -> None:
        """Go back to the best placement, and count its loads anew."""
        self.loads, self.convex = Loads(self.park, self.best), Convex(self.units, self.best)
        self.scale = self.loads.largest
        self.least = inf if self._full else self.scale

    def take(self, homes: Sequence[int]) -> bool:
        """Go on from another placement if it is valid and better; whether it was."""
        if not homes or not self.units.valid(homes) or Loads(self.park, homes).largest >= self.least * (1 - 1e-12):
            return False
        self.best = list(homes)
        self._restart()
        return True

    def run(self, until: float, rounds: int, steps: int, enough: float = 0.0, warm: float = WARM) -> None:
        """Anneal from the best placement, several times: a round is cold when its steps or its part of the time are over.

        Args:
            until: moment, by the monotonic clock, at which to stop.
            rounds: how often to warm up and cool down.
            steps: moves that are tried in each round, at most.
            enough: a largest load that cannot be beaten.
            warm: energies that a worse move may add at the beginning of a round.
        """
        for left in range(0 if self._idle else rounds, 0, -1):
            began, self.power = monotonic(), next(self.powers)
            seconds = (until - began) / left
            for step in range(steps):
                if not step % TOGETHER:
                    passed = (monotonic() - began) / seconds if seconds > 0.0 else 1.0
                    if passed >= 1.0 or self.least <= enough * (1 + 1e-9):
                        break
                self._step(warm * (COLD / warm) ** max(step / steps, passed))
            self.last = list(self.best if self._full else self.loads.home)
            if self.least < inf:
                self._restart()

    @property
    def _idle(self) -> bool:
        """Whether nothing may move, or nothing can be gained by it."""
        unknown = self.units.contiguous and self.units.reach is None
        return not self.movable or self.least <= 0.0 or len(self.caps) < 2 or unknown

    def _step(self, temperature: float) -> None:
        """Try to move a piece of one processor to another one, mostly in exchange for a piece that takes about as long."""
        choose, home = self.random.random, self.loads.home
        unit = self.movable[int(choose() * len(self.movable))]
        here, there = home[unit], self._target(unit)
        if there == here or there not in self.able[unit]:
            return
        most = 1 if self.crowded and choose() < SINGLE else int(min(LARGEST, len(self.convex.units[here])) ** choose())
        piece = self._end(unit, there, most) if self.units.contiguous else self._piece(unit, there, most)
        if not piece:
            return
        back = self._back(piece, here, there) if choose() < SWAP else []
        moves = dict.fromkeys(piece, there) | dict.fromkeys(back, here)
        deltas = self.loads.joint_deltas(moves)
        energy = self.loads.energy(deltas, self.scale, self.power) + self._fee(moves)
        if self._accept(energy, temperature) and self._convex(piece, back, here, there):
            self.loads.move_all(moves, deltas)
            if self.crowded:
                self.price.note(self._full)
            self._rehome(piece, here, there)
            if back:
                self._rehome(back, there, here)
            self._note()

    def _target(self, unit: int) -> int:
        """Where something near the unit is, or anywhere."""
        choose, near = self.random.random, self.units.near[unit]
        if near and choose() < 0.5:
            return self.loads.home[near[int(choose() * len(near))]]
        return int(choose() * len(self.caps))

    def _piece(self, unit: int, there: int, most: int, seconds: float = inf) -> list[int]:
        """Units of one processor that hang together and may all go to another one.

        Args:
            unit: the first of them.
            there: where they are to go.
            most: how many there may be.
            seconds: of computing, after which there are enough.
        """
        choose, home, near = self.random.random, self.loads.home, self.units.near
        here, row = home[unit], self.units.rows[there]
        found, edge, inside = [unit], [unit], {unit}
        seconds -= row[unit]
        while edge and len(found) < most and seconds > 0.0:
            place = int(choose() * len(edge))
            for other in near[edge[place]]:
                if other not in inside and home[other] == here and there in self.able[other]:
                    found.append(other)
                    edge.append(other)
                    inside.add(other)
                    seconds -= row[other]
                    break
            else:
                edge[place] = edge[-1]
                edge.pop()
        return found

    def _end(self, unit: int, there: int, most: int) -> list[int]:
        """The unit and all that follow it on its processor, or all that lead to it there: without it, what is left is convex.

        If these are more than ``most``, those from one of them on, and so on.
        """
        choose, home, able = self.random.random, self.loads.home, self.able
        here, ways = home[unit], self.units.after if choose() < 0.5 else self.units.before
        for _ in range(WALK):
            found = [unit]
            for each in found:  # grows while it is read
                found += [other for other in ways[each] if home[other] == here and other not in found]
                if len(found) > most:
                    break
            else:
                return found if all(there in able[each] for each in found) else []
            unit = found[1 + int(choose() * (len(found) - 1))]
        return []

    def _back(self, piece: Sequence[int], here: int, there: int) -> list[int]:
        """A piece of the processor that another one goes to, which takes about as long; empty if none is met with."""
        choose, row = self.random.random, self.units.rows[here]
        for _ in range(2 * len(self.caps)):
            unit = self.movable[int(choose() * len(self.movable))]
            if self.loads.home[unit] == there and here in self.able[unit]:
                if self.units.contiguous:
                    return self._end(unit, here, max(1, int(2 * choose() * len(piece))))
                return self._piece(unit, here, LARGEST, (0.5 + choose()) * sum(row[each] for each in piece))
        return []

    def _fee(self, moves: Mapping[int, int]) -> float:
        """What moves cost beside loads: the price of the bytes by which memory is exceeded more after them."""
        return self.price.now * self.loads.beyond(moves) if self.crowded else 0.0

    @property
    def _full(self) -> bool:
        """Whether some processor holds more than it may."""
        return self.crowded and any(used > cap for used, cap in zip(self.loads.used, self.caps, strict=True))

    def _convex(self, piece: Sequence[int], back: Sequence[int], here: int, there: int) -> bool:
        """Whether both processors stay convex when they exchange two pieces."""
        state = self.convex
        if not back:
            return state.may_leave(piece, here) and state.may_join(piece, there)
        return state.may_join(piece, there, without=back) and state.may_join(back, here, without=piece)

    def _rehome(self, piece: Sequence[int], here: int, there: int) -> None:
        self.convex.leave(piece, here)
        for unit in piece:
            self.convex.join(unit, there)

    def _accept(self, energy: float, temperature: float) -> bool:
        return energy <= 0.0 or (energy < 40.0 * temperature and self.random.random() < exp(-energy / temperature))

    def _note(self) -> None:
        largest = self.loads.largest
        if largest < self.least * (1 - 1e-12) and not self._full:
            self.least = self.scale = largest
            self.best = list(self.loads.home)
