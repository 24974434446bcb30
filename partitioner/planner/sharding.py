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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

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
        forms: of each value that is still needed.
        rule: of the last op.
        homes: of state that the last op is the first to use.
        before: the state that it came from.
    """

    cost: float
    forms: dict[str, Forms]
    rule: Rule | None = None
    homes: tuple[tuple[str, Placement], ...] = ()
    before: _State | None = None


def shared_out(ops: Sequence[ShardedOp], values: Mapping[str, Whole], results: Sequence[str], axis: Axis) -> Sharding:
    """The cheapest way to do all ops.

    Args:
        ops: in program order.
        values: every value, by name.
        results: the values that must be whole at the end.
        axis: the ranks.
    """
    last = {name: number for number, op in enumerate(ops) for name in op.inputs} | dict.fromkeys(results, len(ops))
    made = {op.name for op in ops}
    given = {name: (() if whole.state else (R,)) for name, whole in values.items() if name not in made}
    first = {name: number for number, op in reversed(list(enumerate(ops))) for name in op.inputs}
    states, proven = [_State(0.0, {})], True
    for number, op in enumerate(ops):
        fresh = {name: given[name] for name in op.inputs if name in given and first[name] == number}
        found: dict[tuple[tuple[str, Forms], ...], _State] = {}
        for state in states:
            now = replace(state, forms=state.forms | fresh)
            for rule in op.rules:
                after = _applied(now, op, rule, values, axis)
                if after is None:
                    continue
                live = {name: forms for name, forms in after.forms.items() if last.get(name, -1) > number}
                key = tuple(live.items())
                if key not in found or after.cost < found[key].cost:
                    found[key] = _State(after.cost, live, rule, after.homes, state)
        states, all_kept = _best(list(found.values()), values, axis)
        proven &= all_kept
    ends = [(state.cost + _at_the_end(state, results, values, axis), place) for place, state in enumerate(states)]
    cost, place = min(ends)
    return _chosen(ops, states[place], values, axis, cost, proven)


def price(whole: Whole, axis: Axis) -> float:
    """What it costs that every rank has all of a parameter, in seconds: what it would take to send it, `PRICE` times."""
    return PRICE * (whole.held / axis.bandwidth + axis.latency * whole.matrix) if whole.state else 0.0


def _applied(state: _State, op: ShardedOp, rule: Rule, values: Mapping[str, Whole], axis: Axis) -> _State | None:
    """What an op makes of a state by a rule; ``None`` if it cannot be done so."""
    cost, forms, homes = state.cost + rule.seconds, dict(state.forms), []
    split = rule.output != R
    for name, need in zip(op.inputs, rule.inputs, strict=True):
        whole, have = values[name], forms[name]
        need = F if need == R and split and whole.grad else need
        if not have:
            home = need if need.kind == "S" else R
            cost += price(whole, axis) if home == R else 0.0
            homes.append((name, home))
            have = (home,)
        if whole.fixed:
            if need not in have:
                return None
            continue
        way = axis.way(have, need, whole.bytes, whole.grad)
        if way is None:
            return None
        gathered = whole.state and any(source.kind == "S" for source, _ in way[1])
        cost += way[0] + (price(whole, axis) if gathered else 0.0)
        if way[0] > 0 or not forms[name]:  # what costs nothing is made again, and is no state of its own
            forms[name] = tuple(sorted({*have, *(target for _, target in way[1])}))
    forms[op.name] = (rule.output,)
    return _State(cost, forms, rule, tuple(homes), state)


def _best(states: list[_State], values: Mapping[str, Whole], axis: Axis) -> tuple[list[_State], bool]:
    """The states that may still win, and whether all of those were kept.

    A state cannot win against a cheaper one that comes to all of its forms for no more than what it is cheaper by.
    """
    states.sort(key=lambda state: state.cost)
    kept: list[_State] = []
    for state in states:
        if not any(_reaches(other, state, values, axis) for other in kept[:RIVALS]):
            kept.append(state)
    return kept[:WIDEST], len(kept) <= WIDEST


def _reaches(one: _State, other: _State, values: Mapping[str, Whole], axis: Axis) -> bool:
    """Whether a state can come to all forms of another one, and then costs no more."""
    left = other.cost - one.cost
    for name, forms in other.forms.items():
        have = one.forms[name]
        if have is forms or have == forms:
            continue
        left -= _gap(axis, have, forms, values[name])
        if left < 0:
            return False
    return True


@cache
def _gap(axis: Axis, have: Forms, forms: Forms, whole: Whole) -> float:
    """What it costs at most to have, beside these forms of a value, those, too; of state that is not used yet, any."""
    if whole.fixed:
        return inf
    if not have or not forms:
        return price(whole, axis) + 2 * sum(
            sum(axis.seconds(step, whole.bytes, whole.grad) or (0.0, 0.0)) for step in ((P, R), (R, F))
        )
    ways = [axis.way(have, form, whole.bytes, whole.grad) for form in forms]
    return price(whole, axis) + sum(inf if way is None else way[0] for way in ways)


def _at_the_end(state: _State, results: Sequence[str], values: Mapping[str, Whole], axis: Axis) -> float:
    ways = (axis.way(state.forms.get(name) or (R,), R, values[name].bytes, values[name].grad) for name in results)
    return sum(inf if way is None else way[0] for way in ways)


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
