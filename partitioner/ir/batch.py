"""A plan in calls of other sizes, and the largest batch with which it fits its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import count

from partitioner.ir.footprint import footprints
from partitioner.ir.machine import caps
from partitioner.ir.plan import Plan
from partitioner.ir.program import original

MOST = 1 << 30
"""A batch that is larger than any."""


def batch_of(plan: Plan) -> int | None:
    """The batch of a plan's example: the first dimension of all of its inputs, if that is one number."""
    first = {meta.shape[0] if meta.shape else 0 for _, meta in plan.graph.inputs if meta is not None}
    return found if len(first) == 1 and (found := first.pop()) > 0 else None


def resized(plan: Plan, sizes: Mapping[str, int]) -> Plan:
    """A plan in a call of other sizes.

    Args:
        plan: what was decided, and what its ops take in the call that it was made for; its instructions stay.
        sizes: bytes of the results of ops, and of inputs, in the other call; those of others stay.
    """
    before = {op.name: op.bytes for op in plan.graph.ops}
    before |= {name: meta.bytes for name, meta in plan.graph.inputs if meta is not None}
    values = (replace(each, bytes=sizes.get(original(each.name), each.bytes)) for each in plan.program.values)
    memory = plan.memory and plan.memory.resized(sizes, before)
    return replace(plan, program=replace(plan.program, values=tuple(values)), memory=memory)


def at_batch(plan: Plan, batch: int) -> dict[str, int]:
    """Bytes of the results of ops, and of inputs, that differ in a call with another batch.

    What follows from the inputs and is a multiple of the batch in size is taken to grow with it, and all else to stay.
    """
    before = batch_of(plan) or 1
    sizes = {name: meta.bytes for name, meta in plan.graph.inputs if meta is not None}
    for op in plan.graph.ops:
        if any(name in sizes for name in op.inputs) and op.bytes % before == 0:
            sizes[op.name] = op.bytes
    return {name: size * batch // before for name, size in sizes.items()}


def largest_batch(plan: Plan) -> int | None:
    """The largest batch with which a plan keeps every cap of its machine, predicted from the batch of its example.

    Args:
        plan: its program stays; a plan that is made for that batch may fit better.

    Returns:
        0 if none fits; ``None`` if there is no cap, the inputs have no batch in common, or nobody knows what ops take.
    """
    limits, before = caps(plan.machine), batch_of(plan)
    if not limits or before is None:
        return None

    @cache
    def room(batch: int) -> int:
        found = footprints(resized(plan, at_batch(plan, batch)))
        return min(limits[name] - each.total for name, each in found.items() if name in limits)

    if not set(limits) & set(footprints(plan)):
        return None
    return 0 if room(1) < 0 else _last(room, max(2, before))


def _last(room: Callable[[int], int], high: int) -> int | None:
    """The last number with room, of those from 1, which has some; room shrinks by and large evenly. ``None`` beyond `MOST`."""
    low = 1
    while room(high) >= 0:
        if high >= MOST:
            return None
        shrinks = room(1) - room(high)
        guess = MOST if shrinks <= 0 else 2 + room(1) * (high - 1) // shrinks
        low, high = high, min(MOST, max(2 * high, guess))
    for tries in count():
        if high - low <= 1:
            break
        even = low + room(low) * (high - low) // (room(low) - room(high))
        middle = (low + high) // 2 if tries % 3 == 2 else min(max(even, low + 1), high - 1)
        low, high = (middle, high) if room(middle) >= 0 else (low, middle)
    return low
