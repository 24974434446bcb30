"""Ops grouped into tasks: the unit that is placed on a lane and launched as one.

A task is *convex*: no path leaves it and comes back, so the task graph is a DAG again.

    tasks TwoTowers
      t0 = [linear, relu, linear_1] (x) -> (linear_1)        w:linear_1 r:x r:left.0.weight
      t1 = [linear_2, relu_1] (x) -> (relu_1)                ...
      t2 = [cat] (linear_1, relu_1) -> (cat)                 ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from partitioner.ir.access import ANY, Access, merged
from partitioner.ir.dag import quotient
from partitioner.ir.graph import Graph


@dataclass(frozen=True)
class Task:
    """A convex group of ops.

    Args:
        name: ``t0``, ``t1``, ... in program order of the first op.
        ops: names, in program order.
        inputs: values that come from other tasks or from the call, in order of first use.
        outputs: values that other tasks read or that the model returns.
        accesses: the union of the ops' accesses, temporaries that stay inside left out.
    """

    name: str
    ops: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    accesses: tuple[Access, ...] = ()

    def __str__(self) -> str:
        touched = " ".join(map(str, self.accesses))
        return f"{self.name} = [{', '.join(self.ops)}] ({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})  {touched}"


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Every task, and the DAG that the ops' edges induce.

    Args:
        graph: what was grouped.
        tasks: in an order in which they may run.
    """

    graph: Graph
    tasks: tuple[Task, ...]

    @cached_property
    def by_name(self) -> dict[str, Task]:
        """Task by name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def task_of(self) -> dict[str, str]:
        """Op name to task name."""
        return {op: task.name for task in self.tasks for op in task.ops}

    @cached_property
    def edges(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """``(earlier task, later task)`` to the values that pass between them; none for a pure hazard."""
        found: dict[tuple[str, str], dict[str, None]] = {}
        for (source, target), kind in self.graph.edges.items():
            pair = self.task_of[source], self.task_of[target]
            if pair[0] != pair[1]:
                values = found.setdefault(pair, {})
                if kind == "data":
                    values[source] = None
        return {pair: tuple(values) for pair, values in found.items()}

    @cached_property
    def random_only(self) -> frozenset[tuple[str, str]]:
        """The edges that nothing but a random generator makes."""
        kinds: dict[tuple[str, str], set[str]] = {}
        for (source, target), kind in self.graph.edges.items():
            kinds.setdefault((self.task_of[source], self.task_of[target]), set()).add(kind)
        return frozenset(pair for pair in self.edges if kinds[pair] == {"random"})

    def __str__(self) -> str:
        return "\n".join([f"tasks {self.graph.name}", *(f"  {task}" for task in self.tasks)])


def group(graph: Graph, groups: Iterable[Sequence[str]]) -> TaskGraph:
    """Tasks from disjoint convex groups of op names that cover the graph.

    Raises:
        ValueError: an op is missing or in two groups, or a group is not convex.
    """
    ordered = [tuple(sorted(ops, key=graph.position.__getitem__)) for ops in groups]
    home: dict[str, int] = {}
    for number, ops in enumerate(ordered):
        for op in ops:
            if home.setdefault(op, number) != number:
                raise ValueError(f"op {op} is in two tasks")
    missing = [op.name for op in graph.ops if op.name not in home]
    if missing:
        raise ValueError(f"ops in no task: {', '.join(missing)}")
    ranks = _order(graph, ordered)
    escaping = _escaping(graph, home)
    tasks = tuple(_task(graph, f"t{rank}", ordered[number], escaping) for rank, number in enumerate(ranks))
    return TaskGraph(graph, tasks)


def _order(graph: Graph, groups: Sequence[Sequence[str]]) -> list[int]:
    """The groups in an order in which they may run: of those that could be next, the one whose first op is."""
    try:
        dag = quotient(graph.dag, groups)
        return list(nx.lexicographical_topological_sort(dag, key=lambda number: graph.position[groups[number][0]]))
    except nx.NetworkXUnfeasible as error:
        raise ValueError("a group of ops is not convex: the task graph has a cycle") from error


def _escaping(graph: Graph, home: Mapping[str, int]) -> set[str]:
    """Values that leave the task that makes them."""
    known = graph.by_name
    escaping = {name for name in graph.outputs if name in known}
    for op in graph.ops:
        escaping.update(name for name in op.inputs if name in known and home[name] != home[op.name])
    return escaping


def _task(graph: Graph, name: str, ops: tuple[str, ...], escaping: set[str]) -> Task:
    members = [graph.by_name[op] for op in ops]
    own = set(ops)
    outputs = tuple(op.name for op in members if op.name in escaping)
    inputs = dict.fromkeys(value for op in members for value in op.inputs if value not in own)
    # A storage made here and seen by nobody outside is a temporary: only the task knows it.
    seen = {storage for value in outputs for storage in graph.by_name[value].storages}
    touched = (access for op in members for access in op.accesses)
    accesses = merged(each for each in touched if each.resource == ANY or each.resource not in own or each.resource in seen)
    return Task(name, ops, tuple(inputs), outputs, accesses)
