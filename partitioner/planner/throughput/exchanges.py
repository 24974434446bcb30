"""Of all exchanges with one processor the one that is best for loads and bytes, again and again: where memory is scarce, or
nothing travels.

    p   a 5 s 4 MB   b 2 s 1 MB   -      goal 6 s, caps 6 and 5 MB: p has a second too much, q a megabyte
    q   c 4 s 4 MB   d 1 s 2 MB   -      b for nothing (-): 3 too much; a <-> c: 1; a <-> d: 6; b <-> d: 0, so that is made

Seconds beyond a goal and bytes beyond a cap are both excess, and bytes are the dearer the longer there are any. What went away
may not come back for a few turns, so the search leaves what no exchange makes better. The few exchanges that suit both loads
and caps, or few large tasks on many processors, are hardly ever drawn at random; here all those of one processor are looked at
together, as tables.

Sources: Glover, "Tabu search, part I", ORSA Journal on Computing 1(3), 1989; Diaz and Fernandez, "A tabu search heuristic for
the generalized assignment problem", EJOR 132(1), 2001.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.throughput.overfull import Price
from partitioner.planner.throughput.prices import Park
from partitioner.planner.throughput.units import Floats

WALKS, MOST_TURNS, LOOKS = 2, 1_000, 1_500_000
"""Walks from the start; exchanges that each makes, and those that all look at, about, at most."""

DEAR = 0.25
"""Bounds that as many bytes as a processor holds on average cost at first."""

PART = 0.2
"""Of what the best load is above the bound, how much the goal is above it."""

FULLEST = 0.5
"""Part of the turns that begin with the processor that has the most excess; the others, with any."""

TENURE = 3
"""Turns for which a unit may not come back, at least; twice as many at most."""

NEVER = 1e9
"""Bounds that a unit takes where it may not go."""


def exchanged(park: Park, homes: Sequence[int], bound: float, hidden: float = 0.0, until: float = inf) -> list[int]:
    """Homes of units that keep memory and at which loads are more even; or those that are given.

    Args:
        park: units and processors. Contiguity is not looked at; passages cost the same everywhere, and for each reader.
        homes: where to begin.
        bound: seconds that no placement beats, more than none.
        hidden: how much of a passage counts where processors compute meanwhile.
        until: moment, by the monotonic clock, at which to stop; infinite: exchanges are counted.
    """
    best = walk = _Exchanges(park, homes, bound, hidden, 0)
    for turn in range(min(WALKS * MOST_TURNS, LOOKS * len(walk.caps) // park.units.count**2)):
        if turn and turn % MOST_TURNS == 0:
            walk = _Exchanges(park, homes, bound, hidden, turn)
        if walk.step(turn) < best.least:
            best = walk
        if best.least <= 1.0 + 1e-9 or monotonic() > until:
            break
    return best.best


def _ties(park: Park, hidden: float) -> Floats:
    """By pairs of units, the seconds that a processor is longer busy if another one has the other unit."""
    units, found = park.units, np.zeros((park.units.count, park.units.count))
    each, byte = np.mean([(*alike.sends,) for alike in park.classes], axis=0)
    for flow in units.flows if units.problem.routes else ():
        seconds = (hidden if units.problem.overlap else 1.0) * (each * flow.count + byte * flow.size)
        for reader in flow.readers:
            found[flow.maker, reader] += seconds
            found[reader, flow.maker] += seconds
    return found


class _Exchanges:
    """Where the search is. Behind the units come some that are nothing, one of each processor, to be exchanged for."""

    def __init__(self, park: Park, homes: Sequence[int], bound: float, hidden: float, seed: int) -> None:
        units, self.caps = park.units, np.array(park.units.problem.caps)
        self.count, places = units.count, range(len(self.caps))
        self.home, self.held = np.r_[homes, places], np.pad(units.memory, (0, len(places)))
        self.ties = np.pad(_ties(park, hidden) / bound, (0, len(places)))
        self.near = np.stack([self.ties[:, self.home == each].sum(axis=1) for each in places])
        self.seconds = np.pad(np.minimum(units.seconds / bound, NEVER), ((0, 0), (0, len(places)))) + self.ties.sum(axis=1)
        self.barred = np.zeros(self.seconds.shape, dtype=int)  # until which turn a unit may not go there
        self.random, self.price = Random(seed), Price(DEAR * len(places) / max(1.0, float(units.memory.sum())))
        self.best, self.least = list(homes), inf

    def step(self, turn: int) -> float:
        """Make the best of the exchanges of one processor; the least largest load until now, of those that fit."""
        home, near = self.home, self.near
        own = (self.seconds - near)[home, range(len(home))]
        loads: Floats = np.bincount(home, own).astype(np.float64)
        used: Floats = np.bincount(home, self.held).astype(np.float64)
        full = bool((used > self.caps).any())
        if not full and loads.max() < self.least * (1 - 1e-12):
            self.best, self.least = home[: self.count].tolist(), float(loads.max())
        self.price.note(full)
        goal = 1.0 + PART * (self.least - 1.0)
        now = self._excess(loads - goal, used - self.caps)
        here = int(now.argmax()) if self.random.random() < FULLEST else self.random.randrange(len(loads))
        gone = np.flatnonzero(home[: self.count] == here)
        table = self._after(gone, here, loads - goal, used - self.caps) - now[home]
        barred = self.barred > turn
        table[barred[home][:, gone].T | barred[here] | (home == here)] = inf
        if table.size and table.min() < inf:
            place, other = divmod(int(table.argmin()), len(home))
            self._exchange(int(gone[place]), other, turn)
        return self.least

    def _excess(self, load: Floats, held: Floats) -> Floats:
        """What seconds and bytes beyond the goal and a cap count."""
        found: Floats = np.maximum(0.0, load) + self.price.now * np.maximum(0.0, held)
        return found

    def _after(self, gone: NDArray[np.intp], here: int, load: Floats, held: Floats) -> Floats:
        """The excess of both processors by unit of one of them, and what comes back for it."""
        home, more = self.home, self.seconds - 2 * self.near
        both = 2 * self.ties[gone]  # is still a passage if these two are exchanged
        rest, left = load[home] - more[home, range(len(home))], held[home] - self.held
        own = self._excess(rest[gone, None] + more[here] + both, left[gone, None] + self.held)
        return own + self._excess(rest + more[home][:, gone].T + both, left + self.held[gone, None])

    def _exchange(self, one: int, other: int, turn: int) -> None:
        """Exchange a unit for another one, or for nothing."""
        here, there, until = int(self.home[one]), int(self.home[other]), turn + 1 + self.random.randint(TENURE, 2 * TENURE)
        for unit, away, to in ((one, here, there), (other, there, here)) if other < self.count else ((one, here, there),):
            self.home[unit], self.barred[away, unit] = to, until
            self.near[away] -= self.ties[unit]
            self.near[to] += self.ties[unit]
