"""Branch and bound: every placement of a few units, or the first that fits of more, depth first.

A placement of some units costs no more than it does with further ones, so what costs as much as the best answer is left. So is
what wastes as much of the processors' priced time and memory as the best answer is above a bound (reduced costs).

Source of the latter: Dantzig, Fulkerson and Johnson, "Solution of a large-scale traveling-salesman problem", Journal of the
Operations Research Society of America 2(4), 1954.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

from partitioner.planner.throughput.convex import Convex
from partitioner.planner.throughput.first import by_size
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park

STEPS = 60_000
"""Placements of one unit that are tried before the search gives up."""

FEW, SOON = 24, 3_000
"""Units up to which looking at all placements may end in some ten milliseconds, and steps after which it is given up."""


@dataclass(frozen=True)
class Found:
    """The best placement that was found, if any, and whether nothing was left out."""

    homes: list[int] | None
    complete: bool


def soon_searched(park: Park, below: float = inf) -> Found:
    """The best placement of few units with a largest load smaller than ``below``, if looking at all of them ends soon."""
    if park.units.count > FEW:
        return Found(None, False)
    return Branching(park, by_size(park)).search(inf, below, steps=SOON)


class Branching:
    """A depth-first search over the processors of one unit after the other.

    Args:
        park: units and processors.
        order: in which units are placed.
    """

    def __init__(self, park: Park, order: Sequence[int]) -> None:
        self.park, self.units, self.order = park, park.units, order
        self.caps = park.units.problem.caps
        self.loads, self.convex = Loads(park, [-1] * park.units.count), Convex(park.units, [])
        self.low = [0.0] * (park.units.count + 1)
        self.more: list[list[float]] = []
        self.alike = {each: names for names in park.interchangeable for each in names}

    def search(self, until: float, below: float = inf, first: bool = False, steps: int = STEPS) -> Found:
        """Look for the best placement.

        Args:
            until: moment, by the monotonic clock, at which to stop.
            below: the largest load must be smaller than this.
            first: whether the first placement that is found will do.
            steps: placements of one unit that are tried; of many units, more.
        """
        if self.units.contiguous and self.units.reach is None:
            return Found(None, False)
        best: list[int] | None = None
        if not first:
            self.low[0], self.more = self.park.least_paid
        untried, saved = [self._choices(0, below)], [list(self.loads.slots)]
        for step in range(max(steps, 4 * self.units.count)):
            if not step % 64 and monotonic() > until:
                return Found(best, False)
            while untried and not untried[-1]:
                untried.pop(), saved.pop()
                if untried:
                    self._lift(self.order[len(untried) - 1], saved[-1])
            if not untried:
                return Found(best, True)
            unit, there = self.order[len(untried) - 1], untried[-1].pop()
            self.loads.move(unit, there)
            self.convex.join(unit, there)
            if self.loads.largest >= below:
                self._lift(unit, saved[-1])
            elif len(untried) == len(self.order):
                best, below = list(self.loads.home), self.loads.largest * (1 - 1e-9)
                self._lift(unit, saved[-1])
                if first:
                    return Found(best, False)
            else:
                saved.append(list(self.loads.slots))
                untried.append(self._choices(len(untried), below))
        return Found(best, False)

    def _choices(self, depth: int, below: float) -> list[int]:
        """The processors that the next unit may go to, the best one last; of empty ones that are alike the first only."""
        unit, found = self.order[depth], []
        if depth and self.more:
            last = self.order[depth - 1]
            self.low[depth] = self.low[depth - 1] + self.more[last][self.loads.home[last]]
        left = below - self.low[depth] * (1 - 1e-9)
        for there in self.units.able[unit]:
            empty = not self.convex.units[there]
            if empty and any(not self.convex.units[each] for each in self.alike[there] if each < there):
                continue
            if self.more and self.more[unit][there] >= left:
                continue
            if self.loads.used[there] + self.loads.memory[unit] > self.caps[there]:
                continue
            if not self._closed(unit, there):
                continue
            deltas = self.loads.deltas(unit, there)
            if (highest := self.loads.highest(deltas)) < below:
                found.append((highest, there))
        return [there for _, there in sorted(found, reverse=True)]

    def _closed(self, unit: int, there: int) -> bool:
        """Whether nothing that has been placed would lie between two units of another processor."""
        reach, state = self.units.reach, self.convex
        if reach is None:
            return True
        others = [each for each in range(len(state.own)) if each != there]
        if any(reach.own[unit] & state.after[each] & state.before[each] for each in others):
            return False
        between = (state.after[there] | reach.after[unit]) & (state.before[there] | reach.before[unit])
        return not any(between & state.own[each] for each in others)

    def _lift(self, unit: int, slots: Sequence[float]) -> None:
        here = self.loads.home[unit]
        self.loads.lift(unit, slots)
        self.convex.leave((unit,), here)
