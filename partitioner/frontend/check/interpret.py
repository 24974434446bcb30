"""A traced graph, run node by node on the model's state, where that lies at the moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from partitioner.ir.graph import Graph
from partitioner.model.node import call_target, fill, load_state


def interpret(
    graph: Graph,
    module: nn.Module,
    tensors: Sequence[torch.Tensor],
    look: Callable[[torch.fx.Node, Any], None] | None = None,
) -> list[Any]:
    """The graph's results.

    Args:
        graph: the traced graph.
        module: whose state it runs on.
        tensors: the graph's inputs.
        look: called with each node and its value.
    """
    inputs = iter(tensors)
    values: dict[torch.fx.Node, Any] = {}
    for node in graph.fx.nodes:
        if node.op == "output":
            break
        values[node] = next(inputs) if node.op == "placeholder" else _call(graph, module, node, values)
        if look is not None:
            look(node, values[node])
    return list(fill(graph.fx.output_node().args[0], values.__getitem__))


def _call(graph: Graph, module: nn.Module, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        return load_state(module, str(node.target), graph.constants)
    args, kwargs = fill((node.args, node.kwargs), values.__getitem__)
    return call_target(module, node.op, node.target, args, kwargs)
