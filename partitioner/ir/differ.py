"""In what two saved graphs differ, in program order: first what goes in, then op by op, then what comes out.

state left.weight is float32[4, 4] in the plan and float32[8, 4] here
op relu is only in the plan
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from partitioner.ir.saved import SavedGraph, SavedOp

Sides = tuple[str, str]
"""What the two graphs are called, as words that end a sentence: ``in the plan``, ``here``."""


def differences(one: SavedGraph, other: SavedGraph, sides: Sides = ("in the plan", "here")) -> Iterator[str]:
    """Each difference as one line.

    >>> x, y = SavedGraph(state={"w": "float32[4]"}), SavedGraph(state={"w": "float32[8]"})
    >>> list(differences(x, y))
    ['state w is float32[4] in the plan and float32[8] here']
    """
    yield from of_values("state", one.state, other.state, sides)
    yield from of_values("input", one.inputs, other.inputs, sides)
    yield from _of_ops(one.ops, other.ops, sides)
    if one.outputs != other.outputs:
        yield f"{', '.join(one.outputs)} is returned {sides[0]} and {', '.join(other.outputs)} {sides[1]}"


def of_values(what: str, one: Mapping[str, str], other: Mapping[str, str], sides: Sides) -> Iterator[str]:
    """Differences between two tables of texts by name."""
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in other or name not in one:
            yield f"{what} {name} is only {sides[0] if name in one else sides[1]}"
        elif one[name] != other[name]:
            yield f"{what} {name} is {one[name]} {sides[0]} and {other[name]} {sides[1]}"
    if list(one) != list(other) and set(one) == set(other):
        yield f"{what}s are in another order"


def _of_ops(one: tuple[SavedOp, ...], other: tuple[SavedOp, ...], sides: Sides) -> Iterator[str]:
    mine, theirs = {op.name for op in one}, {op.name for op in other}
    left, right = list(reversed(one)), list(reversed(other))
    while left or right:
        if left and left[-1].name not in theirs:
            yield f"op {left[-1].name} = {left.pop().call} is only {sides[0]}"
        elif right and right[-1].name not in mine:
            yield f"op {right[-1].name} = {right.pop().call} is only {sides[1]}"
        else:
            yield from _of_op(left.pop(), right.pop(), sides)


def _of_op(one: SavedOp, other: SavedOp, sides: Sides) -> Iterator[str]:
    if one.name != other.name:
        yield f"op {one.name} {sides[0]} stands where {other.name} stands {sides[1]}"
        return
    pairs = (
        ("is", one.call, other.call),
        ("gives", ", ".join(one.gives), ", ".join(other.gives)),
        ("waits for", ", ".join(one.after), ", ".join(other.after)),
    )
    for verb, mine, theirs in pairs:
        if mine != theirs:
            yield f"op {one.name} {verb} {mine or 'nothing'} {sides[0]} and {theirs or 'nothing'} {sides[1]}"
