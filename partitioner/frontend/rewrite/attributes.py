"""Tensors that a graph of torch.compile's holds, as arguments of it.

What is marked as lying where it lies for good (`torch._dynamo.mark_static_address`) is no input to Dynamo: an optimizer's
parameters and all that it keeps of them. A step writes it, and of what is written it has to be known who else has it.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node

from partitioner.model.state import attribute


def as_arguments(module: GraphModule) -> tuple[GraphModule, list[str]]:
    """The same with placeholders, behind those that there are, for the tensors that it holds.

    Args:
        module: goes on holding them.

    Returns:
        The module itself where it holds none, and the names under which it holds them.

    Example:
        >>> graph = Graph()
        >>> held = graph.get_attr("held")
        >>> _ = graph.output(graph.call_method("add", (graph.placeholder("x"), held)))
        >>> other, names = as_arguments(GraphModule({"held": torch.ones(2)}, graph))
        >>> names, [node.op for node in other.graph.nodes]
        (['held'], ['placeholder', 'placeholder', 'call_method', 'output'])
    """
    held = {
        node: str(node.target)
        for node in module.graph.find_nodes(op="get_attr")
        if isinstance(attribute(module, str(node.target)), torch.Tensor)
    }
    if not held:
        return module, []
    graph, made = Graph(), dict[Node, Node]()
    for node in module.graph.find_nodes(op="placeholder"):
        made[node] = graph.node_copy(node)
    first: dict[str, Node] = {}
    for node, name in held.items():
        if name not in first:
            first[name] = graph.placeholder(node.name)
            first[name].meta = dict(node.meta)
        made[node] = first[name]
    for node in module.graph.nodes:
        if node not in made:
            made[node] = graph.node_copy(node, made.__getitem__)
    return GraphModule(module, graph), list(first)
