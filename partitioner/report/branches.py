"""The branches of a model as people see them: chains of ops, without what follows from something else.

    x -- q -- view_1 --.            An op that asks a tensor for its size joins the tensor's op, and an edge that others
     \\     size ^       matmul      imply is left out: x must run before view_1 anyway, because q is between them.
      \\-- k -- view_2 -'            What is left are the branches [x, size], [q, view_1], [k, view_2], [matmul].

So a residual block is one branch: its skip connection orders nothing that the block does not order, and lets nothing overlap.
Which ops may run at the same time is the same with and without these edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from partitioner.ir.dag import chains, quotient
from partitioner.ir.graph import Graph


def branches(graph: Graph) -> list[list[str]]:
    """Every op in exactly one chain, in program order; the chains in an order in which they may run."""
    clusters = _with_sizes(graph)
    dag = reduced(quotient(graph.dag, clusters))
    found = ([op for cluster in branch for op in clusters[cluster]] for branch in chains(dag))
    return [sorted(ops, key=graph.position.__getitem__) for ops in found]


def _with_sizes(graph: Graph) -> list[list[str]]:
    """Ops, each with the sizes, devices and dtypes that depend on it alone. Merging these cannot close a cycle."""
    clusters: list[list[str]] = []
    home: dict[str, int] = {}
    for op in graph.ops:
        before = {home[name] for name in graph.dag.predecessors(op.name)}
        if not op.tensor and len(before) == 1:
            (number,) = before
        else:
            number = len(clusters)
            clusters.append([])
        clusters[number].append(op.name)
        home[op.name] = number
    return clusters


def reduced(dag: nx.DiGraph[int]) -> nx.DiGraph[int]:
    """The transitive reduction: the fewest edges with the same paths. Sets of nodes are the bits of an integer.

    Example:
        >>> sorted(reduced(nx.DiGraph([(0, 1), (1, 2), (0, 2), (2, 3), (0, 3)])).edges)
        [(0, 1), (1, 2), (2, 3)]
    """
    order: Sequence[int] = list(nx.topological_sort(dag))
    position = {node: number for number, node in enumerate(order)}
    reach: dict[int, int] = {}
    result: nx.DiGraph[int] = nx.DiGraph()
    result.add_nodes_from(dag)
    for node in reversed(order):
        seen = 0
        for after in sorted(dag.successors(node), key=position.__getitem__):
            if not seen >> position[after] & 1:
                result.add_edge(node, after)
                seen |= reach[after]
        reach[node] = seen | 1 << position[node]
    return result
