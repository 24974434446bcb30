"""A traced graph, run node by node where its state lies at the moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from partitioner.ir.graph import Graph
from partitioner.model.modes import casts_kept, in_mode
from partitioner.model.node import call_node, fill

Calling = Callable[[torch.fx.Node, Any, Any], Any]
"""Calls a node with positional and named arguments."""


def interpret(graph: Graph, arguments: Sequence[Any], call: Calling = call_node) -> list[Any]:
    """The graph's results.

    Args:
        graph: the traced program.
        arguments: the values of its placeholders.
        call: calls each op.
    """
    values = values_of(graph, arguments, [op.name for op in graph.ops], graph.outputs, call)
    return list(fill(graph.fx.output_node().args[0], values.__getitem__))


def values_of(
    graph: Graph,
    arguments: Iterable[Any],
    ops: Sequence[str],
    kept: Collection[str],
    call: Calling = call_node,
) -> dict[torch.fx.Node, Any]:
    """What some ops give, and all placeholders. A value goes when its last reader has run, as in eager.

    Args:
        graph: the traced program.
        arguments: the values of its placeholders.
        ops: the names of those to run, in program order, with all that they are made of.
        kept: of these, those whose values stay.
        call: calls each of them.
    """
    values: dict[torch.fx.Node, Any] = {}
    given, last = iter(arguments), graph.last_uses(ops, kept)
    with casts_kept():
        for node in graph.fx.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = graph.bodies[str(node.target)]
            elif node.name in last:
                op = graph.by_name[node.name]
                try:
                    with in_mode(op.mode):
                        values[node] = call(node, *fill((node.args, node.kwargs), values.__getitem__))
                except Exception as error:
                    error.add_note(f"in op {op.shown}")
                    raise
                for name in last[node.name]:
                    del values[graph.nodes[name]]
    return values
