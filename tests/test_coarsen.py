"""Ops to tasks: every op in one, convex, never across pins, no shorter than the grain where that can be helped."""

from __future__ import annotations

from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.access import Access
from partitioner.ir.cost import Costs, OpCost
from partitioner.ir.graph import Graph, Op
from partitioner.ir.machine import Device, Machine
from partitioner.planner.coarsen import CAP_SHARE, coarsen
from partitioner.planner.constraints import Constraints, constrain
from partitioner.planner.feasible import Feasible
from partitioner.planner.pose import pose
from programs import graphs, make_graph, random_constraints, random_costs, random_machine

TWO_LANES = Machine((Device("cpu", "cpu", 2, overhead=0.0, flops=1.0, bandwidth=1e9),))
RANDOMS = st.randoms(use_true_random=False)
GRAINS = st.sampled_from((None, 0.0, 1e-4, 1e-3, 1.0))


def op(name: str, *inputs: str, tensor: bool = True) -> Op:
    accesses = (*(Access(value) for value in inputs), *((Access(name, True),) if tensor else ()))
    return Op(name, "f", inputs, accesses, (name,) if tensor else (), tensor=tensor)


def costing(graph: Graph, machine: Machine = TWO_LANES, state: int = 0, **seconds: int) -> Costs:
    """Each op takes the seconds given, or one."""
    ops = {known.name: OpCost(seconds.get(known.name, 1), 0, state) for known in graph.ops}
    return Costs(machine, ops, True)


def free(graph: Graph, machine: Machine = TWO_LANES, *pins: tuple[str, str]) -> Constraints:
    return constrain(graph, pins, [], {}, {})


def groups(graph: Graph, grain: float, costs: Costs | None = None, *pins: tuple[str, str]) -> list[list[str]]:
    costs = costs or costing(graph)
    return [list(task.ops) for task in coarsen(graph, costs, free(graph, costs.machine, *pins), grain).tasks]


def two_branches() -> Graph:
    """
          a
         / \\
        b   d        b, c is a chain, and so is d
        c   |
         \\ /
          e
    """
    ops = [op("a", "x"), op("b", "a"), op("c", "b"), op("d", "a"), op("e", "c", "d")]
    return make_graph(ops, outputs=["e"])


def test_chains_become_tasks() -> None:
    """No time is lost by launching a chain as one: nothing else could run between its ops."""
    assert groups(two_branches(), 0.0) == [["a"], ["b", "c"], ["d"], ["e"]]


def test_a_fork_shorter_than_the_grain_is_one_task() -> None:
    """This is the profitability gate: handing a branch over would take longer than running it here."""
    assert groups(two_branches(), 100.0) == [["a", "b", "c", "d", "e"]]


def test_long_branches_stay_apart() -> None:
    """Two branches worth a hand-off are two tasks, whatever the short ops around them join."""
    tasks = groups(two_branches(), 3.0, costing(two_branches(), b=9, d=9))
    home = {name: number for number, task in enumerate(tasks) for name in task}
    assert home["b"] == home["c"] != home["d"]


def test_short_equal_branches_are_gathered_up_to_the_grain() -> None:
    """Eight heads of one second each, and a grain of four: two tasks of four heads, not one of eight and not eight."""
    heads = [op(f"h{number}", "a") for number in range(8)]
    graph = make_graph([op("a", "x"), *heads, op("join", *(head.name for head in heads))], outputs=["join"])
    tasks = groups(graph, 4.0, costing(graph, a=9, join=9))
    assert sorted(len(task) for task in tasks) == [1, 1, 4, 4]


def test_a_short_task_whose_neighbours_become_one_joins_them() -> None:
    """
    a: 1 s --.---------.
              u: 9 s -- v: 9 s         ``a`` has two neighbours, until ``side`` has joined ``u`` and u, v are a chain
    b: 9 s --'  `- side: 1 s
    """
    ops = [op("a", "x"), op("b", "x"), op("u", "a", "b"), op("side", "u"), op("v", "u", "a")]
    graph = make_graph(ops, outputs=["side", "v"])
    assert groups(graph, 4.0, costing(graph, b=9, u=9, v=9)) == [["a", "b", "u", "side", "v"]]


def test_a_size_is_asked_where_its_tensor_is() -> None:
    """Even if its tensor has other users, who would be held up by a task of its own for ``size``."""
    ops = [op("a", "x"), op("size", "a", tensor=False), op("b", "a"), op("c", "b", "size"), op("d", "a")]
    graph = make_graph(ops, outputs=["c", "d"])
    assert ["a", "size"] in groups(graph, 0.0)


def test_a_chain_is_cut_where_pins_differ() -> None:
    machine = Machine((Device("a", "cuda:0"), Device("b", "cuda:1")))
    graph = make_graph([op("one", "x"), op("two", "one"), op("three", "two")], outputs=["three"])
    assert groups(graph, 0.0, costing(graph, machine), ("one", "a"), ("three", "b")) == [["one"], ["two"], ["three"]]


def test_without_shapes_times_mean_nothing() -> None:
    """So no branch is called too short on their account."""
    graph = two_branches()
    unknown = Costs(TWO_LANES, costing(graph).ops, False)
    assert len(coarsen(graph, unknown, free(graph)).tasks) == 4


def test_one_lane_needs_no_grain() -> None:
    """With one lane there is nothing to hand over, and small tasks can still be cut between devices."""
    one = Machine((Device("cpu", "cpu"),))
    assert len(groups(two_branches(), 100.0, costing(two_branches(), one))) == 4


def test_no_task_holds_more_state_than_can_be_placed() -> None:
    """A chain of layers is cut so that several devices can share it: each task has a share of the smallest cap at most."""
    machine = Machine((Device("a", "cuda:0", memory=16 * CAP_SHARE), Device("b", "cuda:1", memory=1000 * CAP_SHARE)))
    graph = make_graph([op(f"l{n}", f"l{n - 1}" if n else "x") for n in range(12)], outputs=["l11"])
    costs = costing(graph, machine, state=4)
    assert groups(graph, 100.0, costs) == [[f"l{n}" for n in range(first, first + 4)] for first in (0, 4, 8)]


@given(RANDOMS, graphs(), GRAINS)
def test_tasks_cover_and_keep_to_the_rules(rng: Random, graph: Graph, grain: float | None) -> None:
    """For any graph: a partition, acyclic (`group` refuses the rest), no pin broken, and placeable."""
    machine = random_machine(rng)
    costs, constraints = random_costs(rng, graph, machine), random_constraints(rng, graph, machine)
    tasks = coarsen(graph, costs, constraints, grain)
    assert sorted(name for task in tasks.tasks for name in task.ops) == sorted(known.name for known in graph.ops)
    assert nx.is_directed_acyclic_graph(nx.DiGraph(list(tasks.edges)))
    for task in tasks.tasks:
        pins = {constraints.pinned(name) for name in task.ops if graph.by_name[name].tensor}
        assert len(pins) <= 1, "ops pinned to different devices, or pinned and free ones, are never merged"
    Feasible(pose(tasks, costs, machine, constraints))


@given(RANDOMS, graphs(), st.sampled_from((1e-4, 1e-3, 1.0)))
def test_what_is_still_short_could_not_be_merged(rng: Random, graph: Graph, grain: float) -> None:
    """A task below the grain has several neighbours on either side, or only ones that pins forbid."""
    machine = random_machine(rng, [("cpu",)])
    if len(machine.lanes) == 1:
        return
    costs, constraints = random_costs(rng, graph, machine), free(graph, machine)
    tasks = coarsen(graph, costs, constraints, grain)
    for task in tasks.tasks:
        if costs.time(task.ops, machine.devices[0]) < grain:
            assert sum(after == task.name for _, after in tasks.edges) != 1
            assert sum(before == task.name for before, _ in tasks.edges) != 1


@given(graphs())
def test_a_larger_grain_makes_no_more_tasks(graph: Graph) -> None:
    counts = [len(coarsen(graph, costing(graph), free(graph), grain).tasks) for grain in (0.0, 2.0, 100.0)]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("grain", [0.0, 2.0, 100.0])
def test_the_same_tasks_each_time(grain: float) -> None:
    """Plans are compared and cached, so nothing may depend on the order of a set."""
    graph = two_branches()
    assert str(coarsen(graph, costing(graph), free(graph), grain)) == str(coarsen(graph, costing(graph), free(graph), grain))
