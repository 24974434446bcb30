"""Moves of contiguous parts: what goes to another processor leaves parts that no path leaves and comes back to.

x  a > b > c > d      c and all behind it go to y: what is left of x is in one piece
y  e > f > g          what lies between them and y's own goes along; if y is too full then, an end of it goes on to x or z
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from partitioner.ir.problem import Problem
from partitioner.planner.feasible import bits
from partitioner.planner.throughput.hulls import units_of

ALONE = 0.5
"""Part of the pieces that are one unit."""

BACK = 0.5
"""Part of the ends that make room which go back to where others have come from, if they fit there."""

LARGEST = 12
"""Units of a piece: parts of more that go whole to each other's processors are the same parts, and take most of the time."""

ONWARD = 3
"""Ends that may make room, one after the other."""


class Cuts:
    """Contiguous parts of one problem, and what may go from one to another.

    Args:
        problem: not too large for it to be known who leads to whom.
        random: all that is left to chance.
    """

    def __init__(self, problem: Problem, random: Random) -> None:
        units = units_of(problem, contiguous=True)
        assert units.reach is not None
        self.random, self.caps, self.reach, self.lanes = random, problem.caps, units.reach, problem.lanes
        self.unit_of, self.able, self.members, self.held = units.unit_of, units.able_sets, units.members, units.memory.tolist()
        self.homes: list[int] = []
        self.units: list[list[int]] = []
        self.used: list[float] = []

    def __call__(self, lanes: Sequence[int], task: int, targets: Iterable[int]) -> dict[int, int]:
        """The tasks that go to other processors if one goes to any of ``targets``, and to which; none if no way was drawn."""
        homes = [self.lanes[lanes[tasks[0]]] for tasks in self.members]
        if homes != self.homes:
            self.homes = homes
            self.units, self.used = [[] for _ in self.caps], [0.0] * len(self.caps)
            for unit, at in enumerate(homes):
                self.units[at].append(unit)
                self.used[at] += self.held[unit]
        unit = self.unit_of[task]
        found: dict[int, int] = next((way for there in targets if (way := self._drawn(unit, there))), {})
        return {member: to for each, to in found.items() for member in self.members[each]}

    def _drawn(self, unit: int, there: int) -> dict[int, int]:
        """One way, by unit; none if it breaks a rule."""
        caps, homes, used, here = self.caps, self.homes, list(self.used), self.homes[unit]
        moved: dict[int, int] = {}
        piece, to = self._piece(self.units[here], unit), there
        if here == there or len(piece) > LARGEST or sum(self.held[each] for each in piece) > caps[there]:
            return {}
        piece += self._between([*self.units[there], *piece])
        for _ in range(1 + ONWARD):
            if not 0 < len(piece) <= LARGEST or not all(to in self.able[each] for each in piece):
                return {}
            for each in piece:
                used[homes[each]] -= self.held[each]
                used[to] += self.held[each]
                moved[each] = to
            if used[to] <= caps[to]:
                break
            piece, to = self._end([each for each in self.units[to] if each not in moved], to, here, used)
        touched = {*moved.values(), *map(homes.__getitem__, moved)}
        if any(used[each] > caps[each] for each in touched):
            return {}
        parts = {at: [each for each in self.units[at] if each not in moved] for at in touched}
        for each, at in moved.items():
            parts[at].append(each)
        return {} if any(map(self.reach.between, parts.values())) else moved

    def _end(self, part: list[int], over: int, here: int, used: Sequence[float]) -> tuple[list[int], int]:
        """Of what is left of a part that is too full, an end without which it is not, and where that goes; none: too little."""
        random, own, held, piece, rest = self.random, self.reach.own, self.held, list[int](), 0
        side = self.reach.after if random.random() < 0.5 else self.reach.before
        more, gone = used[over] - self.caps[over], 0.0
        if sum(held[each] for each in part) < more:
            return [], here
        random.shuffle(part)
        for each in part:
            rest |= own[each]
        while part and gone < more:
            last = next((each for each in part if not side[each] & rest & ~own[each]), part[0])
            part.remove(last)
            rest &= ~own[last]
            gone += held[last]
            piece.append(last)
        ways = [to for to in range(len(used)) if to != over]
        fit = [to for to in ways if used[to] + gone <= self.caps[to]]
        return piece, here if here in fit and random.random() < BACK else random.choice(fit or ways)

    def _piece(self, part: Sequence[int], unit: int) -> list[int]:
        """A unit alone, or an end of its part: with all that follow it there, or all that lead to it."""
        drawn, own = self.random.random(), self.reach.own
        if drawn < ALONE:
            return [unit]
        side = (self.reach.after if drawn < (1 + ALONE) / 2 else self.reach.before)[unit]
        return [unit, *(each for each in part if own[each] & side and each != unit)]

    def _between(self, part: Iterable[int]) -> list[int]:
        """The units that lie between those of a part and are not among them."""
        return list(dict.fromkeys(self.unit_of[task] for task in bits(self.reach.between(part))))
