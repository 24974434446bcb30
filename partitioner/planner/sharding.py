"""Share the ops of a graph out over the ranks of a tensor axis: of each op the rule, of each parameter how it is held.

    q, k, v   columns: heads        what attention makes of them needs no word to another rank
    out       rows                  summands, which are summed once, before the norm

A user who asks for such an axis wants the model divided, small matrices, too. So a parameter that every rank has whole is
priced; apart from that, time decides.

The choice is made op by op in program order. What matters of the past is in which forms the values lie that are still needed:
states that agree in that are one, of which the cheapest stays. That is dynamic programming, and exact unless there are more
than `WIDEST` states at once. Source: the search over operator layouts of Jia et al., "Beyond data and model parallelism for
deep neural networks", MLSys 2019, and of Zheng et al., "Alpa", OSDI 2022, who solves it as an integer program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from math import inf
from typing import NamedTuple

from partitioner.ir.sharding import F, P, Placement, R
from partitioner.ir.shared import Axis, Rule, ShardedOp, Sharding, Whole

PRICE = 100.0
"""What it costs that every rank has a parameter whole, in the time that it takes to send it."""

WIDEST = 60
"""States at once, beyond which only the cheapest are followed."""

RIVALS = 8
"""With how many cheaper states one is compared."""

Forms = tuple[Placement, ...]
"""The forms in which a value lies, sorted; none of state that no op has used yet."""


@dataclass(frozen=True, eq=False)
class _State:
    """A way to do the ops so far.

    Args:
        cost: of all of it.
        forms: of each value that is still needed, by their number in `_Table`.
        rule: of the last op.
        homes: of state that the last op is the first to use.
        before: the state that it came from.
    """

    cost: float
    forms: dict[str, int]
    rule: Rule | None = None
    homes: tuple[tuple[str, Placement], ...] = ()
    before: _State | None = None


class _Way(NamedTuple):
    """What it takes that a value with some forms has another one.

    Args:
        cost: of it.
        forms: that there are then.
        home: the form in which state begins; ``None`` if it has begun before.
    """

    cost: float
    forms: int
    home: Placement | None


class _Table:
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
        self.ways: dict[tuple[int, int, int], _Way | None] = {}
        self.gaps: dict[tuple[int, int, int], float] = {}
        self.moves: dict[tuple[int, tuple[int, ...]], tuple[tuple[Rule, int, tuple[int, ...]], ...]] = {}
        self.kept: list[object] = []

    def number(self, forms: Forms) -> int:
        """The number of some forms."""
        if forms not in self.numbers:
            self.numbers[forms] = len(self.forms)
            self.forms.append(forms)
        return self.numbers[forms]

    def rules_of(self, op: ShardedOp) -> tuple[tuple[Rule, int, tuple[int, ...]], ...]:
        """Each rule of an op, with the forms of its result and those that it wants of its inputs."""
        kinds = tuple(self.kind[name] for name in op.inputs)
        key = id(op.rules), kinds
        if key not in self.moves:
            self.kept.append(op.rules)  # else another one might get its id
            self.moves[key] = tuple(
                (rule, self.number((rule.output,)), tuple(map(self._wanted, kinds, rule.inputs, repeat(rule.output != R))))
                for rule in op.rules
            )
        return self.moves[key]

    def _wanted(self, kind: int, form: Placement, split: bool) -> int:
        return self.number((F if form == R and split and self.wholes[kind].grad else form,))

    def way(self, have: int, need: int, kind: int) -> _Way | None:
        """From forms that there are to one that is needed; ``None`` if nothing leads there."""
        key = have, need, kind
        if key not in self.ways:
            self.ways[key] = self._way(self.forms[have], self.forms[need][0], self.wholes[kind])
        return self.ways[key]

    def _way(self, have: Forms, need: Placement, whole: Whole) -> _Way | None:
        cost, home, begun = 0.0, None, bool(have)
        if not begun:
            home = need if need.kind == "S" else R
            cost, have = price(whole, self.axis) if home == R else 0.0, (home,)
        if whole.fixed:
            return _Way(cost, self.number(have if begun else ()), home) if need in have else None
        way = self.axis.way(have, need, whole.bytes, whole.grad)
        if way is None:
            return None
        gathered = whole.state and any(source.kind == "S" for source, _ in way[1])
        cost += way[0] + (price(whole, self.axis) if gathered else 0.0)
        after = have
        if way[0] > 0 or not begun:  # what costs nothing is made again, and is no state of its own
            after = tuple(sorted({*have, *(target for _, target in way[1])}))
        return _Way(cost, self.number(after), home)

    def gap(self, have: int, forms: int, kind: int) -> float:
        """What it costs at most to have, beside forms of a value, others, too; of state that is not used yet, any."""
        key = have, forms, kind
        if key not in self.gaps:
            self.gaps[key] = _gap(self.axis, self.forms[have], self.forms[forms], self.wholes[kind])
        return self.gaps[key]

    def at_the_end(self, state: _State, results: Sequence[str]) -> float:
        """What it costs to have results whole."""
        wholes = ((self.forms[state.forms.get(name, 0)] or (R,), self.wholes[self.kind[name]]) for name in results)
        ways = (self.axis.way(have, R, whole.bytes, whole.grad) for have, whole in wholes)
        return sum(inf if way is None else way[0] for way in ways)


def shared_out(ops: Sequence[ShardedOp], values: Mapping[str, Whole], results: Sequence[str], axis: Axis) -> Sharding:
    """The cheapest way to do all ops.

    Args:
        ops: in program order.
        values: every value, by name.
        results: the values that must be whole at the end.
        axis: the ranks.
    """
    last = {name: number for number, op in enumerate(ops) for name in op.inputs} | dict.fromkeys(results, len(ops))
    made, table = {op.name for op in ops}, _Table(values, axis)
    whole = table.number((R,))
    given = {name: (0 if each.state else whole) for name, each in values.items() if name not in made}
    first = {name: number for number, op in reversed(list(enumerate(ops))) for name in op.inputs}
    states, proven = [_State(0.0, {})], True
    for number, op in enumerate(ops):
        fresh = {name: given[name] for name in op.inputs if name in given and first[name] == number}
        done = [name for name in (*op.inputs, op.name) if last.get(name, -1) <= number]
        found: dict[tuple[tuple[str, int], ...], _State] = {}
        for state in states:
            now = replace(state, forms=state.forms | fresh)
            for after in _applied(now, state, op, table, done):
                key = tuple(after.forms.items())
                if key not in found or after.cost < found[key].cost:
                    found[key] = after
        states, all_kept = _best(list(found.values()), table)
        proven &= all_kept
    ends = [(state.cost + table.at_the_end(state, results), place) for place, state in enumerate(states)]
    cost, place = min(ends)
    return _chosen(ops, states[place], values, axis, cost, proven)


def price(whole: Whole, axis: Axis) -> float:
    """What it costs that every rank has all of a parameter, in seconds: what it would take to send it, `PRICE` times."""
    return PRICE * (whole.held / axis.bandwidth + axis.latency * whole.matrix) if whole.state else 0.0


def _applied(now: _State, before: _State, op: ShardedOp, table: _Table, done: Sequence[str]) -> Iterator[_State]:
    """What an op makes of a state, by each rule by which it can be done so, without the values that are done with."""
    for rule, output, wanted in table.rules_of(op):
        cost, forms, homes = now.cost + rule.seconds, dict(now.forms), []
        for name, need in zip(op.inputs, wanted, strict=True):
            way = table.way(forms[name], need, table.kind[name])
            if way is None:
                break
            cost += way.cost
            forms[name] = way.forms
            if way.home is not None:
                homes.append((name, way.home))
        else:
            forms[op.name] = output
            for name in done:
                forms.pop(name, None)
            yield _State(cost, forms, rule, tuple(homes), before)


def _best(states: list[_State], table: _Table) -> tuple[list[_State], bool]:
    """The states that may still win, and whether all of those were kept.

    A state cannot win against a cheaper one that comes to all of its forms for no more than what it is cheaper by.
    """
    states.sort(key=lambda state: state.cost)
    kept: list[_State] = []
    for state in states:
        if not any(_reaches(other, state, table) for other in kept[:RIVALS]):
            kept.append(state)
    return kept[:WIDEST], len(kept) <= WIDEST


def _reaches(one: _State, other: _State, table: _Table) -> bool:
    """Whether a state can come to all forms of another one, and then costs no more."""
    left = other.cost - one.cost
    for name, forms in other.forms.items():
        have = one.forms[name]
        if have != forms:
            left -= table.gap(have, forms, table.kind[name])
            if left < 0:
                return False
    return True


def _gap(axis: Axis, have: Forms, forms: Forms, whole: Whole) -> float:
    if whole.fixed:
        return inf
    if not have or not forms:
        return price(whole, axis) + 2 * sum(
            sum(axis.seconds(step, whole.bytes, whole.grad) or (0.0, 0.0)) for step in ((P, R), (R, F))
        )
    ways = [axis.way(have, form, whole.bytes, whole.grad) for form in forms]
    return price(whole, axis) + sum(inf if way is None else way[0] for way in ways)


def _chosen(
    ops: Sequence[ShardedOp], state: _State, values: Mapping[str, Whole], axis: Axis, cost: float, proven: bool
) -> Sharding:
    """What was decided on the way to a state."""
    rules: dict[str, Rule] = {}
    homes: dict[str, Placement] = {}
    for op in reversed(ops):
        assert state.rule is not None and state.before is not None
        rules[op.name] = state.rule
        homes |= dict(state.homes)
        state = state.before
    held = {name: homes.get(name, R) for name, whole in values.items() if whole.state}
    return Sharding(axis, dict(reversed(rules.items())), held, cost, proven)
