"""What it costs that a value has another form on the ranks of a tensor axis, asked and answered by numbers.

forms     0: none yet     1: whole     2: columns     3: columns, and whole     ...
kinds     values of equal sizes, of which the same is true
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from math import inf, isfinite, ldexp
from typing import NamedTuple

from partitioner.ir.sharding import F, P, Placement, R
from partitioner.ir.shared import Axis, Rule, ShardedOp, Whole

PRICE = 100.0
"""What it costs that every rank has a parameter whole, in the time that it takes to send it."""

GRID = 46
"""Costs are multiples of two to the power of minus so many seconds, 14 femtoseconds."""

Forms = tuple[Placement, ...]
"""The forms in which a value lies, sorted; none of state that no op has used yet."""


class Way(NamedTuple):
    """What it takes that a value with some forms has another one.

    Args:
        cost: of it.
        forms: that there are then.
        home: the form in which state begins; ``None`` if it has begun before.
    """

    cost: float
    forms: int
    home: Placement | None


class Move(NamedTuple):
    """A rule, what it costs, the form of its result and those that it wants of its inputs."""

    rule: Rule
    cost: float
    output: int
    wanted: tuple[int, ...]


class Table:
    """Forms by number, and what conversions cost: layers are alike, so each is asked for many times.

    Args:
        values: every value, by name.
        axis: the ranks.

    Attributes:
        kind: of each value the number of those that are alike.
    """

    def __init__(self, values: Mapping[str, Whole], axis: Axis) -> None:
        self.axis = axis
        self.numbers: dict[Forms, int] = {(): 0}
        self.forms: list[Forms] = [()]
        alike: dict[Whole, int] = {}
        self.kind = {name: alike.setdefault(whole, len(alike)) for name, whole in values.items()}
        self.wholes = list(alike)
        self.ways: dict[tuple[int, int, int], Way | None] = {}
        self.gaps: dict[tuple[int, int, int], float] = {}
        self.moves: list[tuple[Move, ...]] = []
        self.moves_of: dict[tuple[int, tuple[int, ...]], int] = {}
        self.kept: list[object] = []

    def number(self, forms: Forms) -> int:
        """The number of some forms."""
        if forms not in self.numbers:
            self.numbers[forms] = len(self.forms)
            self.forms.append(forms)
        return self.numbers[forms]

    def rules_of(self, op: ShardedOp) -> int:
        """The number of an op's rules in ``moves``."""
        kinds = tuple(self.kind[name] for name in op.inputs)
        key = id(op.rules), kinds
        if key not in self.moves_of:
            self.kept.append(op.rules)  # else another one might get its id
            self.moves_of[key] = len(self.moves)
            wanted = (tuple(map(self._wanted, kinds, rule.inputs, repeat(rule.output != R))) for rule in op.rules)
            found = ((rule, _gridded(rule.seconds), self.number((rule.output,))) for rule in op.rules)
            self.moves.append(tuple(Move(*each, forms) for each, forms in zip(found, wanted, strict=True)))
        return self.moves_of[key]

    def _wanted(self, kind: int, form: Placement, split: bool) -> int:
        return self.number((F if form == R and split and self.wholes[kind].grad else form,))

    def way(self, have: int, need: int, kind: int) -> Way | None:
        """From forms that there are to one that is needed; ``None`` if nothing leads there."""
        key = have, need, kind
        if key not in self.ways:
            self.ways[key] = self._way(self.forms[have], self.forms[need][0], self.wholes[kind])
        return self.ways[key]

    def _way(self, have: Forms, need: Placement, whole: Whole) -> Way | None:
        cost, home, begun = 0.0, None, bool(have)
        if not begun:
            home = need if need.kind == "S" else R
            cost, have = price(whole, self.axis) if home == R else 0.0, (home,)
        if whole.fixed:
            return Way(_gridded(cost), self.number(have if begun else ()), home) if need in have else None
        way = self.axis.way(have, need, whole.bytes, whole.grad)
        if way is None:
            return None
        gathered = whole.state and any(source.kind == "S" for source, _ in way[1])
        cost += way[0] + (price(whole, self.axis) if gathered else 0.0)
        after = have
        if way[0] > 0 or not begun:  # what costs nothing is made again, and is no state of its own
            after = tuple(sorted({*have, *(target for _, target in way[1])}))
        return Way(_gridded(cost), self.number(after), home)

    def gap(self, have: int, forms: int, kind: int) -> float:
        """What it costs at most to have, beside forms of a value, others, too; of state that is not used yet, any."""
        key = have, forms, kind
        if key not in self.gaps:
            self.gaps[key] = _gap(self.axis, self.forms[have], self.forms[forms], self.wholes[kind])
        return self.gaps[key]

    def at_the_end(self, forms: Mapping[str, int], results: Sequence[str]) -> float:
        """What it costs to have results whole."""
        wholes = ((self.forms[forms.get(name, 0)] or (R,), self.wholes[self.kind[name]]) for name in results)
        ways = (self.axis.way(have, R, whole.bytes, whole.grad) for have, whole in wholes)
        return sum(inf if way is None else way[0] for way in ways)


def price(whole: Whole, axis: Axis) -> float:
    """What it costs that every rank has all of a parameter, in seconds: what it would take to send it, `PRICE` times."""
    return PRICE * (whole.held / axis.bandwidth + axis.latency * whole.matrix) if whole.state else 0.0


def _gridded(seconds: float) -> float:
    """Seconds on a grid so coarse that their sums are exact: what is equal in one layer is equal in all."""
    return ldexp(round(ldexp(seconds, GRID)), -GRID) if isfinite(seconds) else seconds


def _gap(axis: Axis, have: Forms, forms: Forms, whole: Whole) -> float:
    if whole.fixed:
        return inf
    if not have or not forms:
        return price(whole, axis) + 2 * sum(
            sum(axis.seconds(step, whole.bytes, whole.grad) or (0.0, 0.0)) for step in ((P, R), (R, F))
        )
    ways = [axis.way(have, form, whole.bytes, whole.grad) for form in forms]
    return price(whole, axis) + sum(inf if way is None else way[0] for way in ways)
