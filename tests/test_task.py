"""Grouping ops into tasks: what passes between tasks, what stays inside, and which groups are refused."""

from __future__ import annotations

from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.access import ANY, RNG, Access
from partitioner.ir.graph import Graph, Op
from partitioner.ir.task import TaskGraph, group
from programs import graphs, make_graph


def op(name: str, *inputs: str, extra: tuple[Access, ...] = ()) -> Op:
    """An op that reads its inputs and makes a new tensor."""
    reads = tuple(Access(value) for value in inputs)
    return Op(name, "f", inputs, (*reads, Access(name, True), *extra), (name,))


def diamond() -> Graph:
    """
          a
         / \\
        b   c
         \\ /
          d
    """
    return make_graph([op("a", "x"), op("b", "a"), op("c", "a"), op("d", "b", "c")], outputs=["d"])


def intervals(rng: Random, graph: Graph) -> list[list[str]]:
    """The ops cut into runs of consecutive ones, which are always convex."""
    groups: list[list[str]] = [[]]
    for known in graph.ops:
        if groups[-1] and rng.random() < 0.5:
            groups.append([])
        groups[-1].append(known.name)
    return groups


task_graphs = st.tuples(st.randoms(use_true_random=False), graphs()).map(lambda pair: group(pair[1], intervals(*pair)))


def test_the_values_of_a_task() -> None:
    """``b`` stays inside of t1: it is no output, and its storage is nobody else's business."""
    tasks = group(diamond(), [["a"], ["b", "c", "d"]])
    assert str(tasks).splitlines() == [
        "tasks Toy",
        "  t0 = [a] (x) -> (a)  w:a r:x",
        "  t1 = [b, c, d] (a) -> (d)  r:a w:d",
    ]
    assert tasks.edges == {("t0", "t1"): ("a",)}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([["a"], ["b"], ["c"]], "ops in no task: d"),
        ([["a", "b"], ["b", "c", "d"]], "op b is in two tasks"),
        ([["a", "d"], ["b"], ["c"]], "not convex"),
        ([["a", "b", "d"], ["c"]], "not convex"),
    ],
)
def test_bad_groups_are_refused(groups: list[list[str]], message: str) -> None:
    """A group that a path leaves and enters again could never be launched as one."""
    with pytest.raises(ValueError, match=message):
        group(diamond(), groups)


@given(task_graphs)
def test_tasks_cover_the_graph_and_run_in_their_order(tasks: TaskGraph) -> None:
    assert sorted(name for task in tasks.tasks for name in task.ops) == sorted(known.name for known in tasks.graph.ops)
    assert nx.is_directed_acyclic_graph(nx.DiGraph(list(tasks.edges)))
    position = {task.name: number for number, task in enumerate(tasks.tasks)}
    assert all(position[before] < position[after] for before, after in tasks.edges)
    assert [task.name for task in tasks.tasks] == [f"t{number}" for number in range(len(tasks.tasks))]


@given(task_graphs)
def test_a_value_leaves_its_task_exactly_if_somebody_outside_wants_it(tasks: TaskGraph) -> None:
    """An output too many keeps memory alive; one too few, and its reader finds nothing."""
    wanted = set(tasks.graph.outputs)
    for known in tasks.graph.ops:
        for value in known.inputs:
            if tasks.task_of.get(value) != tasks.task_of[known.name]:
                wanted.add(value)
                assert value in tasks.by_name[tasks.task_of[known.name]].inputs
    for known in tasks.graph.ops:
        assert (known.name in tasks.by_name[tasks.task_of[known.name]].outputs) == (known.name in wanted)


@given(task_graphs)
def test_tasks_of_conflicting_ops_conflict(tasks: TaskGraph) -> None:
    """Accesses that are left out as a task's own business must be nobody else's."""
    edges = tasks.graph.edges
    for (before, after), kind in edges.items():
        one, other = tasks.task_of[before], tasks.task_of[after]
        if one != other and kind == "hazard":
            mine = {access.resource: access.write for access in sorted(tasks.by_name[one].accesses)}
            theirs = {access.resource: access.write for access in sorted(tasks.by_name[other].accesses)}
            shared = any(mine[resource] or theirs[resource] for resource in mine.keys() & theirs.keys())
            assert shared or ANY in mine or ANY in theirs


def test_tasks_that_share_the_generator_and_more_are_not_random_only() -> None:
    """``random_only`` edges need no event on an accelerator, so one hazard among them must be enough to lose the name."""
    draw, shared = Access(RNG, True), Access("self.b", True)
    ops = [op("a", "x", extra=(draw,)), op("b", "x", extra=(draw, shared)), op("c", "x", extra=(draw, shared))]
    alone = group(make_graph(ops, outputs=["c"]), [["a"], ["b"], ["c"]])
    assert alone.random_only == {("t0", "t1")}
    together = group(make_graph(ops, outputs=["c"]), [["a", "b"], ["c"]])
    assert together.random_only == frozenset()
