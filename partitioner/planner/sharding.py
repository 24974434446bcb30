"""Share the ops of a graph out over the ranks of a tensor axis: of each op the rule, of each parameter how it is held.

    q, k, v   columns: heads        what attention makes of them needs no word to another rank
    out       rows                  summands, which are summed once, before the norm

A user who asks for such an axis wants the model divided, small matrices, too. So a parameter that every rank has whole is
priced; apart from that, time decides.

The choice is made op by op in program order. What matters of the past is in which forms the values lie that are still needed:
states that agree in that are one, of which the cheapest stays. That is dynamic programming, and exact unless there are more
than `WIDEST` states at once. Layers that are alike soon begin with the same states, apart from what the cheapest one has cost;
what an op makes of given states is found once, so the search takes as long as the layers that differ do.

Source: the search over operator layouts of Jia et al., "Beyond data and model parallelism for deep neural networks", MLSys
2019, and of Zheng et al., "Alpa", OSDI 2022, who solves it as an integer program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from partitioner.ir.sharding import Placement, R
from partitioner.ir.shared import Axis, Rule, ShardedOp, Sharding, Whole
from partitioner.planner.conversions import Move, Table

WIDEST = 240
"""States at once, beyond which only the cheapest are followed."""

RIVALS = 8
"""With how many cheaper states one is compared."""


class _State(NamedTuple):
    """A way to do the ops so far, as far as those that follow can see it.

    Args:
        cost: beyond that of the cheapest one.
        forms: of each value that is still needed, by their number in `Table`.
    """

    cost: float
    forms: tuple[int, ...]


class _Link(NamedTuple):
    """How a state came about: from which one before, by which rule, and in which form each new state of the model begins."""

    before: int
    rule: Rule
    homes: tuple[tuple[int, Placement], ...]


@dataclass(frozen=True, eq=False)
class _Front:
    """The states between two ops, the cheapest first, and the kinds of the values that are still needed."""

    kinds: tuple[int, ...]
    states: tuple[_State, ...]


class _Turn(NamedTuple):
    """What an op is to the states before it: the same for ops that are alike in layers that are alike.

    Args:
        moves: the number of its rules in `Table`.
        inputs: their places among the values that are needed, behind which those lie that it is the first to use.
        fresh: the kind and the forms of each of the latter.
        kind: of its result, which lies behind all of these.
        done: the places of what is needed no more.
    """

    moves: int
    inputs: tuple[int, ...]
    fresh: tuple[tuple[int, int], ...]
    kind: int
    done: frozenset[int]


class _Step(NamedTuple):
    """What an op makes of the states before it: those behind it, how each came about, what the cheapest one costs more."""

    front: _Front
    links: tuple[_Link, ...]
    cost: float
    proven: bool


def shared_out(ops: Sequence[ShardedOp], values: Mapping[str, Whole], results: Sequence[str], axis: Axis) -> Sharding:
    """The cheapest way to do all ops.

    Args:
        ops: in program order.
        values: every value, by name.
        results: the values that must be whole at the end.
        axis: the ranks.
    """
    table = Table(values, axis)
    names: list[str] = []
    front = _Front((), (_State(0.0, ()),))
    fronts: dict[tuple[tuple[int, ...], tuple[_State, ...]], _Front] = {}
    known: dict[tuple[_Turn, _Front], _Step] = {}
    steps: list[_Step] = []
    for turn, needed in _turns(ops, values, results, table):
        if (turn, front) not in known:
            step = _step(turn, front, table)
            same = fronts.setdefault((step.front.kinds, step.front.states), step.front)
            known[turn, front] = step._replace(front=same)
        steps.append(known[turn, front])
        front, names = steps[-1].front, needed
    forms = (dict(zip(names, state.forms, strict=True)) for state in front.states)
    ends = [state.cost + table.at_the_end(each, results) for state, each in zip(front.states, forms, strict=True)]
    cost = min(ends)
    return _chosen(ops, steps, ends.index(cost), values, axis, cost)


def _turns(
    ops: Sequence[ShardedOp], values: Mapping[str, Whole], results: Sequence[str], table: Table
) -> Iterator[tuple[_Turn, list[str]]]:
    """What each op is to the states before it, with the values that are needed behind it."""
    last = {name: number for number, op in enumerate(ops) for name in op.inputs} | dict.fromkeys(results, len(ops))
    made, whole = {op.name for op in ops}, table.number((R,))
    given = {name: (0 if each.state else whole) for name, each in values.items() if name not in made}
    names: list[str] = []
    for number, op in enumerate(ops):
        fresh = [name for name in op.inputs if name in given and name not in names]
        places = {name: place for place, name in enumerate([*names, *fresh, op.name])}
        done = {name for name in (*op.inputs, op.name) if last.get(name, -1) <= number}
        names = [name for name in places if name not in done]
        begun = tuple((table.kind[name], given[name]) for name in fresh)
        inputs, gone = tuple(places[name] for name in op.inputs), frozenset(places[name] for name in done)
        yield _Turn(table.rules_of(op), inputs, begun, table.kind[op.name], gone), names


def _step(turn: _Turn, front: _Front, table: Table) -> _Step:
    """What an op makes of states: for each forms of what is needed behind it, the cheapest, if it may still win."""
    found: dict[tuple[int, ...], tuple[float, _Link]] = {}
    fresh = [forms for _, forms in turn.fresh]
    all_kinds = (*front.kinds, *(kind for kind, _ in turn.fresh), turn.kind)
    left = [place for place in range(len(all_kinds)) if place not in turn.done]
    kinds = tuple(all_kinds[place] for place in left)
    for place, state in enumerate(front.states):
        for move, cost, forms, homes in _applied([*state.forms, *fresh], state.cost, turn, all_kinds, table):
            key = tuple(forms[each] for each in left)
            if key not in found or cost < found[key][0]:
                found[key] = cost, _Link(place, move.rule, tuple(homes))
    ordered = sorted(found.items(), key=lambda each: each[1][0])
    kept = _best([_State(cost, forms) for forms, (cost, _) in ordered], kinds, table)
    least = kept[0].cost
    states = tuple(_State(state.cost - least, state.forms) for state in kept[:WIDEST])
    return _Step(_Front(kinds, states), tuple(found[state.forms][1] for state in states), least, len(kept) <= WIDEST)


def _applied(
    before: Sequence[int], begun: float, turn: _Turn, kinds: Sequence[int], table: Table
) -> Iterator[tuple[Move, float, list[int], list[tuple[int, Placement]]]]:
    """What an op makes of a state, by each rule by which it can be done so: what it costs, all forms, what state begins as."""
    for move in table.moves[turn.moves]:
        cost, homes = begun + move.cost, []
        forms = [*before, move.output]
        for number, (place, need) in enumerate(zip(turn.inputs, move.wanted, strict=True)):
            way = table.way(forms[place], need, kinds[place])
            if way is None:
                break
            cost += way.cost
            forms[place] = way.forms
            if way.home is not None:
                homes.append((number, way.home))
        else:
            yield move, cost, forms, homes


def _best(states: Sequence[_State], kinds: Sequence[int], table: Table) -> list[_State]:
    """The states that may still win, of some of which the cheapest is first; of more than `WIDEST`, one more than these.

    A state cannot win against a cheaper one that comes to all of its forms for no more than what it is cheaper by.
    """
    kept: list[_State] = []
    for state in states:
        if len(kept) > WIDEST:
            break
        if not any(_reaches(other, state, kinds, table) for other in kept[:RIVALS]):
            kept.append(state)
    return kept


def _reaches(one: _State, other: _State, kinds: Sequence[int], table: Table) -> bool:
    """Whether a state can come to all forms of another one, and then costs no more."""
    left = other.cost - one.cost
    for have, forms, kind in zip(one.forms, other.forms, kinds, strict=True):
        if have != forms:
            left -= table.gap(have, forms, kind)
            if left < 0:
                return False
    return True


def _chosen(
    ops: Sequence[ShardedOp], steps: Sequence[_Step], place: int, values: Mapping[str, Whole], axis: Axis, rest: float
) -> Sharding:
    """What was decided on the way to a state, which at the end costs so much more than the cheapest one."""
    rules: dict[str, Rule] = {}
    homes: dict[str, Placement] = {}
    for op, step in zip(reversed(ops), reversed(steps), strict=True):
        place, rules[op.name], begun = step.links[place]
        homes |= {op.inputs[number]: form for number, form in begun}
    held = {name: homes.get(name, R) for name, whole in values.items() if whole.state}
    cost = sum(step.cost for step in steps) + rest
    return Sharding(axis, dict(reversed(rules.items())), held, cost, all(step.proven for step in steps))
