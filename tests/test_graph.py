"""The one hazard rule, and the DAG that follows from it, against the definition worked out pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.access import ANY, RNG, Access, conflict, hazards
from partitioner.ir.graph import Graph, Op
from programs import graphs, make_graph

RESOURCES = ("x", "y", "z", RNG, ANY)
ACCESSES = st.lists(st.builds(Access, st.sampled_from(RESOURCES), st.booleans()), max_size=3)
TRACES = st.lists(ACCESSES, max_size=8).map(lambda items: [(f"op{n}", accesses) for n, accesses in enumerate(items)])


def must_keep_order(one: Sequence[Access], other: Sequence[Access]) -> bool:
    """The rule itself, with its three cases spelt out."""
    if any(access.resource == ANY for access in (*one, *other)):
        return True
    return any(a.resource == b.resource and (a.write or b.write) for a in one for b in other)


def reachable(pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    return set(nx.transitive_closure(nx.DiGraph(pairs)).edges)


@given(TRACES)
def test_hazards_imply_every_conflicting_pair(trace: list[tuple[str, list[Access]]]) -> None:
    """`hazards` leaves pairs out that follow from others. Left out once too often, two ops would race."""
    every = [(a, b) for i, (a, one) in enumerate(trace) for b, other in trace[i + 1 :] if must_keep_order(one, other)]
    assert reachable(list(hazards(trace))) == reachable(every)


@given(TRACES)
def test_hazards_order_nothing_else(trace: list[tuple[str, list[Access]]]) -> None:
    """Each pair given is one that the rule asks for: a pair too many would cost a wait, and concurrency."""
    touched = dict(trace)
    for earlier, later in hazards(trace):
        assert must_keep_order(touched[earlier], touched[later])
        assert int(earlier[2:]) < int(later[2:])


@given(ACCESSES, ACCESSES)
def test_conflict_names_a_resource_of_both(one: list[Access], other: list[Access]) -> None:
    """`conflict` is symmetric, and agrees with the rule wherever both touch anything."""
    found = conflict(one, other)
    assert (found is None) == (conflict(other, one) is None)
    if one and other:
        assert (found is not None) == must_keep_order(one, other)
    if found not in (None, ANY):
        assert {found} <= {access.resource for access in one} & {access.resource for access in other}


@pytest.mark.parametrize(
    ("first", "second", "ordered"),
    [
        ("w:x", "r:x", True),  # read after write
        ("r:x", "w:x", True),  # write after read
        ("w:x", "w:x", True),  # write after write
        ("r:x", "r:x", False),
        ("w:x", "w:y", False),
        ("w:*", "r:x", True),  # unknown effects
        ("r:x", "w:*", True),
    ],
)
def test_the_rule_case_by_case(first: str, second: str, ordered: bool) -> None:
    trace = [(name, [Access(text[2:], text[0] == "w")]) for name, text in (("a", first), ("b", second))]
    assert list(hazards(trace)) == ([("a", "b")] if ordered else [])


def test_a_view_needs_no_rule_of_its_own() -> None:
    """
        a = f(x)    v = view(a)    w = relu_(a)    r = g(v)

    ``v`` shares the storage of ``a``, so ``r``, which is given ``v`` alone, still comes after the write to ``a``.
    """
    a, x = Access("a"), Access("x")
    graph = make_graph(
        [
            Op("a", "f", ("x",), (x, Access("a", True)), ("a",)),
            Op("v", "view", ("a",), (a,), ("a",)),
            Op("w", "relu_", ("a",), (Access("a", True),), ("a",)),
            Op("r", "g", ("v",), (a, Access("r", True)), ("r",)),
        ],
        outputs=["r"],
    )
    assert graph.edges["w", "r"] == "hazard"
    assert graph.edges["v", "w"] == "hazard"
    assert graph.edges["v", "r"] == "data"


def test_an_edge_that_is_data_too_is_data() -> None:
    """Whether a value passes decides what is copied between devices, so ``data`` wins over ``hazard`` and ``random``."""
    draw = Access(RNG, True)
    graph = make_graph([Op("a", "rand", (), (draw,), ("a",)), Op("b", "dropout", ("a",), (draw,), ("b",))], outputs=["b"])
    assert graph.edges == {("a", "b"): "data"}


def test_a_random_pair_is_told_from_a_hazard() -> None:
    """A generator alone orders the issue of kernels, a storage orders the kernels: the two kinds must not be mixed up."""
    draw, write = Access(RNG, True), Access("s", True)
    ops = [Op("a", "rand", (), (draw,)), Op("b", "rand", (), (draw, write)), Op("c", "rand", (), (draw, write))]
    assert make_graph(ops, outputs=["c"]).edges == {("a", "b"): "random", ("b", "c"): "hazard"}


@given(graphs())
def test_program_order_is_an_order_of_the_dag(graph: Graph) -> None:
    """Every edge points forward, and every value comes from an edge: running ops in program order is always right."""
    position = {op.name: index for index, op in enumerate(graph.ops)}
    assert all(position[source] < position[target] for source, target in graph.dag.edges)
    assert set(graph.dag) == set(position)
    for op in graph.ops:
        assert all(graph.edges[source, op.name] == "data" for source in op.inputs if source in position)


@given(st.randoms(use_true_random=False), graphs())
def test_ops_without_a_path_do_not_conflict(rng: Random, graph: Graph) -> None:
    """What the DAG leaves unordered may run at once, in any interleaving."""
    ops = rng.sample(graph.ops, min(2, len(graph.ops)))
    if len(ops) == 2 and conflict(ops[0].accesses, ops[1].accesses) is not None:
        one, other = (op.name for op in ops)
        assert nx.has_path(graph.dag, one, other) or nx.has_path(graph.dag, other, one)


def test_a_graph_prints_what_each_op_touches() -> None:
    """The drawing in the docstring of `partitioner.ir.graph`, with what the op is called with."""
    graph = make_graph([Op("r", "relu_", ("x",), (Access("x", True),), ("x",), path="act", source="model.py:3")], outputs=["r"])
    assert str(graph).splitlines() == ["graph Toy", "  in  x  float32[16]", "  r = relu_(x)  w:x", "  out r"]
    assert graph.by_name["r"].where == "in act at model.py:3"
    assert Op("a", "f").where == ""
