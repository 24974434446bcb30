"""A plan in calls of other sizes, and the largest batch with which it fits its machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from partitioner.ir.footprint import footprints
from partitioner.ir.machine import caps
from partitioner.ir.memory import Memory
from partitioner.ir.plan import Plan

MOST = 1 << 30
"""A batch that is larger than any."""


def batch_of(plan: Plan) -> int | None:
    """The batch of a plan's example: the first dimension of all of its inputs, if that is one number."""
    first = {meta.shape[0] if meta.shape else 0 for _, meta in plan.graph.inputs if meta is not None}
    return found if len(first) == 1 and (found := first.pop()) > 0 else None


def resized(plan: Plan, memory: Memory, sizes: Mapping[str, int]) -> tuple[Plan, Memory]:
    """A plan and its memory in a call of other sizes.

    Args:
        plan: what was decided; its instructions stay.
        memory: what its ops take in the call that it was made for.
        sizes: bytes of the results of ops, and of inputs, in the other call; those of others stay.
    """
    before = {op.name: op.bytes for op in plan.graph.ops}
    before |= {name: meta.bytes for name, meta in plan.graph.inputs if meta is not None}
    values = (replace(each, bytes=sizes.get(each.name.partition("@")[0], each.bytes)) for each in plan.program.values)
    return replace(plan, program=replace(plan.program, values=tuple(values))), memory.resized(sizes, before)


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


def largest_batch(plan: Plan, memory: Memory) -> int | None:
    """The largest batch with which a plan keeps every cap of its machine, predicted from the batch of its example.

    Args:
        plan: its program stays; a plan that is made for that batch may fit better.
        memory: what its ops take in the example.

    Returns:
        0 if none fits; ``None`` if there is no cap, or the inputs have no batch in common.
    """
    limits = caps(plan.machine)
    if not limits or batch_of(plan) is None:
        return None

    def fits(batch: int) -> bool:
        found = footprints(*resized(plan, memory, at_batch(plan, batch)))
        return all(each.total <= limits.get(name, each.total) for name, each in found.items())

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < MOST and fits(high):
        low, high = high, 2 * high
    if high >= MOST:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
