"""A traced graph, run node by node where its state lies at the moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partitioner.ir.graph import Graph
from partitioner.model.modes import casts_kept, in_mode
from partitioner.model.node import call_node, fill


def interpret(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    """The graph's results.

    Args:
        graph: the traced program.
        arguments: the values of its placeholders.
    """
    with casts_kept():
        return _results(graph, arguments)


def _results(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    """Runs the nodes. A value goes when its last reader has run, as in eager."""
    values: dict[Any, Any] = {}
    given, last = iter(arguments), graph.last_uses([op.name for op in graph.ops], graph.outputs)
    for node in graph.fx.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = graph.bodies[str(node.target)]
        elif node.op != "output":
            op = graph.by_name[node.name]
            try:
                with in_mode(op.mode):
                    values[node] = call_node(node, *fill((node.args, node.kwargs), values.__getitem__))
            except Exception as error:
                error.add_note(f"in op {op.shown}")
                raise
            for name in last[node.name]:
                del values[graph.nodes[name]]
    return list(fill(graph.fx.output_node().args[0], values.__getitem__))
