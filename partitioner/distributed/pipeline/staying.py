"""What cannot pass from rank to rank, and which ops share a stage for it.

kept = mask.nonzero()      sizes that depend on data: who reads them is with their maker
logits[kept]               a result: made in the last stage, which hands it to the loss
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import networkx as nx
import torch
from networkx.utils import UnionFind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from partitioner.ir.graph import Graph, Op, StateMeta
from partitioner.planner.constraints import Constraints, constrain

EMPTY = torch.empty(0)
"""Stands for a value of which nothing is known."""


def sharing_a_stage(graph: Graph, state: Mapping[str, StateMeta]) -> Constraints:
    """The ops that must share a stage: those that write a storage and use it before, and what hands over no tensor.

    A result that cannot be passed is made in the last stage, so it is with the last op.
    """
    untied = tuple(replace(op, state=tuple(key for key in op.state if f"self.{key}" in graph.written)) for op in graph.ops)
    found = constrain(replace(graph, ops=untied), (), (), state, {})
    groups = with_makers(graph, found)
    for name in open_results(graph):
        groups.union(found.group[name], found.group[graph.ops[-1].name])
    return Constraints({op: groups[group] for op, group in found.group.items()}, {})


def with_makers(graph: Graph, found: Constraints) -> UnionFind[str]:
    """The groups of ops, where readers of what is no single tensor of known sizes are with its maker: it cannot be passed."""
    groups: UnionFind[str] = UnionFind(found.group.values())
    staying = staying_in(graph)
    for op in graph.ops:
        for made in (graph.by_name[name] for name in op.inputs if name in graph.by_name):
            if made.name in staying or made.outputs[1:] or not made.tensor:
                groups.union(found.group[made.name], found.group[op.name])
    return groups


def staying_in(graph: Graph) -> set[str]:
    """The names of the values that cannot go from rank to rank."""
    return {node.name for node in graph.fx.nodes if not can_pass(node.meta.get("example_value", EMPTY))}


def open_results(graph: Graph) -> list[str]:
    """The names of the results whose sizes depend on data."""
    staying = staying_in(graph)
    return [name for name in dict.fromkeys(graph.outputs) if name in staying and name in graph.by_name]


def last_ones_last(graph: Graph, rules: Constraints) -> tuple[Op, ...]:
    """A graph's ops in program order, but that those which share a stage with the last one come late, as open results do."""
    late = {op.name for op in graph.ops if rules.group[op.name] == rules.group[graph.ops[-1].name]}
    late.update(*(nx.descendants(graph.dag, name) for name in late))
    return (*(op for op in graph.ops if op.name not in late), *(op for op in graph.ops if op.name in late))


def can_pass(value: Any) -> bool:
    """Whether a value can go from rank to rank: one tensor, whose sizes do not depend on what is in others."""
    return isinstance(value, torch.Tensor) and not free_unbacked_symbols(value)
