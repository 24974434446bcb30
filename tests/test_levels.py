"""Depth, branches and paths of random DAGs, against definitions worked out path by path."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.dag import chains, critical_path, levels, quotient, upward_priority

SIZE = 7
PAIRS = [(a, b) for a in range(SIZE) for b in range(a + 1, SIZE)]


def dag_of(chosen: list[tuple[int, int]]) -> nx.DiGraph[int]:
    dag: nx.DiGraph[int] = nx.DiGraph()
    dag.add_nodes_from(range(SIZE))
    dag.add_edges_from(chosen)
    return dag


DAGS = st.lists(st.sampled_from(PAIRS), max_size=12).map(dag_of)
TIMES = st.lists(st.integers(0, 9), min_size=SIZE, max_size=SIZE)


def paths_from(dag: nx.DiGraph[int], node: int) -> list[list[int]]:
    """Every path that starts at a node and ends where nothing follows."""
    return [[node, *rest] for after in dag.successors(node) for rest in paths_from(dag, after)] or [[node]]


@given(DAGS)
def test_depth_is_the_longest_way_from_a_source(dag: nx.DiGraph[int]) -> None:
    """And so two ops of one depth have no path between them: the claim that concurrency rests on."""
    found = levels(dag)
    assert sorted(node for level in found for node in level) == sorted(dag)
    for depth, level in enumerate(found):
        assert level == sorted(level), "in the order in which the DAG holds them"
        for node in level:
            ways = [path for start in dag for path in nx.all_simple_paths(dag, start, node)]
            assert depth == max((len(path) - 1 for path in ways), default=0)
        assert not any(nx.has_path(dag, a, b) for a in level for b in level if a != b)


def test_nothing_has_no_depth() -> None:
    empty: nx.DiGraph[int] = nx.DiGraph()
    assert (levels(empty), chains(empty), critical_path(empty, float)) == ([], [], (0.0, []))


@given(DAGS)
def test_branches_are_the_maximal_chains(dag: nx.DiGraph[int]) -> None:
    """Two ops are in one branch exactly if a row of edges between them neither forks nor joins."""
    links = [(a, b) for a, b in dag.edges if dag.out_degree(a) == 1 and dag.in_degree(b) == 1]
    joined = nx.Graph(links)
    joined.add_nodes_from(dag)
    assert {frozenset(branch) for branch in chains(dag)} == {frozenset(part) for part in nx.connected_components(joined)}
    for branch in chains(dag):
        assert all(edge in dag.edges for edge in pairwise(branch))


@given(DAGS)
def test_the_quotient_by_branches_is_a_dag(dag: nx.DiGraph[int]) -> None:
    groups = chains(dag)
    folded = quotient(dag, groups)
    assert nx.is_directed_acyclic_graph(folded)
    home = {node: number for number, group in enumerate(groups) for node in group}
    assert set(folded.edges) == {(home[a], home[b]) for a, b in dag.edges if home[a] != home[b]}
    assert set(folded) == set(range(len(groups)))


@given(DAGS, TIMES, TIMES)
def test_rank_is_the_longest_way_to_the_end(dag: nx.DiGraph[int], times: list[int], delays: list[int]) -> None:
    rank = upward_priority(dag, times.__getitem__, lambda a, b: delays[a])
    for node in dag:
        ways = paths_from(dag, node)
        assert rank[node] == max(sum(times[n] for n in path) + sum(delays[n] for n in path[:-1]) for path in ways)


@given(DAGS, TIMES)
def test_the_critical_path_is_a_path_and_no_other_is_longer(dag: nx.DiGraph[int], times: list[int]) -> None:
    length, path = critical_path(dag, times.__getitem__)
    assert all(edge in dag.edges for edge in pairwise(path))
    assert length == pytest.approx(sum(map(times.__getitem__, path)))
    assert length == max(sum(map(times.__getitem__, way)) for start in dag for way in paths_from(dag, start))
