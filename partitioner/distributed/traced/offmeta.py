"""The graph of a model on the meta device, as it would be of the same model on a CPU.

What an op is made of depends on where it runs. On meta, attention is made of matrix products and keeps their squares of
the sequence; on devices that compute, it is one kernel that keeps its arguments and its result. So what is predicted of a
model that has no storage, its memory and how it is shared out, is predicted of fakes on a CPU, which need no storage either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from partitioner.distributed.traced.example import Example, differentiable
from partitioner.ir.graph import Graph
from partitioner.model.modes import casts_kept, in_mode
from partitioner.model.node import call_node, fill

CPU = torch.device("cpu")


def off_meta(example: Example) -> Example:
    """An example whose values are fakes on a CPU, if they were on meta; else the same.

    Example:
        >>> from partitioner.distributed.traced.example import example_in
        >>> with torch.device("meta"):
        ...     found = example_in(torch.nn.Linear(4, 4), torch.ones(2, 4), None, 1)
        >>> off_meta(found).traced.graph.fx.output_node().args[0][0].meta["example_value"].device
        device(type='cpu')
    """
    graph = example.traced.graph
    values = (leaf for node in graph.fx.nodes for leaf in tree_leaves(node.meta.get("example_value")))
    if not any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in values):
        return example
    with FakeTensorMode(allow_non_fake_inputs=True), casts_kept():
        moved = replace(graph, fx=_moved(graph))
    return replace(example, traced=replace(example.traced, graph=moved), differentiable=differentiable(moved))


def _moved(graph: Graph) -> torch.fx.Graph:
    """A copy of the nodes, whose values are made anew."""
    own: torch.fx.Graph = torch.fx.Graph()
    at: dict[torch.fx.Node, torch.fx.Node] = {}
    values: dict[torch.fx.Node, Any] = {}
    for node in graph.fx.nodes:
        at[node] = own.node_copy(node, at.__getitem__)
        if node.op == "placeholder":
            values[node] = tree_map(_like, node.meta.get("example_value"))
        elif node.op == "get_attr":
            values[node] = graph.bodies[str(node.target)]
            continue
        elif node.op != "output":
            args, kwargs = tree_map(_placed, (node.args, dict(node.kwargs)))
            at[node].args, at[node].kwargs = torch.fx.map_arg((args, kwargs), at.__getitem__)
            call = fill((args, kwargs), values.__getitem__)
            with in_mode(graph.by_name[node.name].mode):
                values[node] = call_node(node, *call)
        at[node].meta = {**node.meta, "example_value": values.get(node)}
    return own


def _like(leaf: Any) -> Any:
    """A fake of the same form on a CPU."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    made = torch.empty_strided(tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device=CPU)
    return made.requires_grad_(leaf.requires_grad)


def _placed(leaf: Any) -> Any:
    """An argument that says on which device a tensor is made says so of the CPU."""
    return CPU if leaf == torch.device("meta") or leaf == "meta" else leaf
