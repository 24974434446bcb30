"""Depth, chains and critical path of a DAG.

*Depth* is networkx's `topological_generations`: ops of one depth have no path between them, so they may run at the same
time. A *chain* is maximal: each op is the only successor of the one before it and has no other predecessor.

          a            depth 0: a          chains: [a], [b, c], [d], [e]
         / \\           depth 1: b, d       width 2
        b   d          depth 2: c
        c   |          depth 3: e
         \\ /
          e
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import networkx as nx

N = TypeVar("N", bound=Hashable)


def levels(dag: nx.DiGraph[N]) -> list[list[N]]:
    """Nodes by depth, in the order in which the DAG holds them."""
    position = {node: index for index, node in enumerate(dag)}
    return [sorted(generation, key=position.__getitem__) for generation in nx.topological_generations(dag)]


def chains(dag: nx.DiGraph[N]) -> list[list[N]]:
    """Maximal chains between forks and joins; every node is in exactly one.

    Example:
        >>> chains(nx.DiGraph([("a", "b"), ("b", "c"), ("c", "e"), ("a", "d"), ("d", "e")]))
        [['a'], ['b', 'c'], ['d'], ['e']]
    """
    found: list[list[N]] = []
    chain_of: dict[N, list[N]] = {}
    for node in nx.topological_sort(dag):
        before = list(dag.predecessors(node))
        if len(before) == 1 and dag.out_degree(before[0]) == 1:
            chain = chain_of[before[0]]
        else:
            chain = []
            found.append(chain)
        chain.append(node)
        chain_of[node] = chain
    return found


def quotient(dag: nx.DiGraph[N], groups: Sequence[Sequence[N]]) -> nx.DiGraph[int]:
    """The DAG between groups of nodes, by their numbers."""
    home = {node: number for number, group in enumerate(groups) for node in group}
    result: nx.DiGraph[int] = nx.DiGraph()
    result.add_nodes_from(range(len(groups)))
    result.add_edges_from((home[a], home[b]) for a, b in dag.edges if home[a] != home[b])
    return result


def upward_priority(
    dag: nx.DiGraph[N], time: Callable[[N], float], delay: Callable[[N, N], float] = lambda _one, _other: 0.0
) -> dict[N, float]:
    """Longest time from the start of each node to the end of the program.

    Args:
        dag: what must keep its order.
        time: seconds of a node.
        delay: seconds that an edge adds if its ends are on two lanes.

    Source: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for heterogeneous
    computing", IEEE TPDS 2002 (HEFT).
    """
    priority: dict[N, float] = {}
    for node in reversed(list(nx.topological_sort(dag))):
        priority[node] = time(node) + max((delay(node, after) + priority[after] for after in dag.successors(node)), default=0.0)
    return priority


def critical_path(dag: nx.DiGraph[N], time: Callable[[N], float]) -> tuple[float, list[N]]:
    """The longest path: its seconds, and its nodes in order."""
    priority = upward_priority(dag, time)
    if not priority:
        return 0.0, []
    node = max(priority, key=priority.__getitem__)
    path = [node]
    while after := list(dag.successors(node)):
        node = max(after, key=priority.__getitem__)
        path.append(node)
    return priority[path[0]], path
