"""What every op of a graph costs: FLOPs and bytes, as tracing saw them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from partitioner.ir.cost import Costs, OpCost
from partitioner.ir.graph import NOTHING, Graph, Op, StateMeta
from partitioner.ir.machine import Machine


def estimate(graph: Graph, machine: Machine, state: Mapping[str, StateMeta]) -> Costs:
    """Cost of every op of ``graph``.

    Args:
        graph: with shapes if example inputs were given.
        machine: devices and their rates.
        state: sizes of each parameter, buffer and constant, by qualified name.
    """
    known = graph.by_name
    sizes = {name: meta.bytes for name, meta in graph.inputs if meta is not None}

    counted: set[int] = set()

    def of(op: Op) -> OpCost:
        used = [state[name] for name in op.state if name in state]
        fresh = {each.storage: each.kept for each in used if each.storage not in counted}
        counted.update(fresh)
        kept = sum(fresh.values())
        if not op.tensor:
            return OpCost(0, 0, kept)
        if op.name not in op.storages and not any(access.write for access in op.accesses):
            return OpCost(0, 0, kept)  # a view
        read = sum(known[name].bytes if name in known else sizes.get(name, 0) for name in op.inputs)
        tables = sum(each.bytes for each in used)
        read += min(tables, _picked(op, read)) if op.target in LOOKUPS else tables
        dtype = str(op.outputs[0].dtype).removeprefix("torch.") if op.outputs else ""
        return OpCost(op.flops or 0, read + op.bytes, kept, dtype, op.exchange, op.work or NOTHING)

    return Costs(machine, {op.name: of(op) for op in graph.ops}, graph.observed)


LOOKUPS = frozenset(["embedding", "embedding_bag", "index_select", "gather", "take", "take_along_dim"])
"""Ops that read some rows of what they are given, and not all of it."""

INDEX_BYTES = 8


def _picked(op: Op, indices: int) -> int:
    """The bytes of the rows that a lookup reads: as many as it gives, or has indices, whichever is more."""
    if not op.outputs or not op.outputs[0].shape:
        return op.bytes
    row = op.outputs[0].bytes * op.outputs[0].shape[-1] // max(1, prod(op.outputs[0].shape))
    return max(op.bytes, indices // INDEX_BYTES * row)
