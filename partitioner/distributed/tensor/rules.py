"""Whether an op can work on parts with no word to other ranks, and how its result is held then.

An op is told by the calls of ATen's that it makes. A call that is in no table works on whole values alone, and so does any with
arguments that its rule does not foresee: what is not known to be right is not done.

`torch.distributed.tensor` has such rules, too. They are written again because it has none for batch norm and convolutions by
channels, takes minutes to find one for attention on a CPU (torch 2.13), and pays for its dispatch at every call, where a graph
of local ops pays nothing. Tests hold each rule here against the op itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.utils._pytree import tree_leaves, tree_map

from partitioner.distributed.tensor.aten import AtenCall, AtenTrace, Held, Slot
from partitioner.distributed.tensor.computing import COMPUTING, pointwise
from partitioner.distributed.tensor.moving import MOVING, Found
from partitioner.ir.sharding import Placement, R


def propagate(trace: AtenTrace, given: Sequence[Placement], ranks: int) -> dict[int, Placement] | None:
    """How each tensor of a trace is held, by its slot's number, if every rank can compute its part; ``None`` if not.

    Args:
        trace: the op's calls.
        given: how its inputs are held.
        ranks: along the axis.

    Returns:
        Tensors that the op keeps for its own backward, and of which nothing is known, are left out.
    """
    known = {slot.number: Held(slot.shape, place) for slot, place in zip(trace.inputs, given, strict=True)}
    for call in trace.calls:
        slots = [leaf for leaf in _leaves(call) if isinstance(leaf, Slot)]
        if all(slot.number not in known or known[slot.number].place == R for slot in slots):
            places: Sequence[Placement | None] = [R] * len(call.results)
        else:
            found = _by_rule(call, known, ranks)
            if found is None:
                return None
            places = [found] * len(call.results) if isinstance(found, Placement) else found
            if call.name.endswith("_") and slots and known[slots[0].number].place != places[0]:
                return None  # it writes where it cannot
        for slot, place in zip(call.results, places, strict=True):
            if slot is not None and place is not None:
                if not place.fits(slot.shape, ranks):
                    return None
                known[slot.number] = Held(slot.shape, place)
    return {number: held.place for number, held in known.items()}


def result_of(trace: AtenTrace, places: Mapping[int, Placement]) -> Placement | None:
    """How an op's result is held, if all tensors in it are held alike."""
    held = [places.get(leaf.number) if isinstance(leaf, Slot) else None for leaf in trace.results]
    return held[0] if held and all(place == held[0] for place in held) else None


def _leaves(call: AtenCall) -> list[object]:
    return tree_leaves((call.args, call.kwargs))


def _by_rule(call: AtenCall, known: Mapping[int, Held], ranks: int) -> Found:
    rule = MOVING.get(call.name) or COMPUTING.get(call.name) or (pointwise if torch.Tag.pointwise in call.op.tags else None)
    if rule is None:
        return None

    def held(leaf: object) -> object:
        return known.get(leaf.number, Held(leaf.shape, R)) if isinstance(leaf, Slot) else leaf

    args, kwargs = tree_map(held, (call.args, call.kwargs))
    shapes = [slot.shape if slot is not None else () for slot in call.results]
    try:
        return rule(ranks, shapes, *args, **kwargs)
    except TypeError:  # arguments that the rule does not foresee
        return None
