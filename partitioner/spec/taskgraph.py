"""A task graph without a model, as a `Problem`: from a JSON file, a mapping or a networkx graph.

    {"tasks": [{"name": "load", "seconds": 0.002, "output": "8MB"},
               {"name": "left", "seconds": {"cpu": 0.030, "gpu": 0.004}, "memory": "1GiB", "group": "towers"}],
     "edges": [["load", "left"]]}

A number in ``seconds`` holds for every kind of device; a kind that is missing cannot run the task, and one that no device has
is passed over unless it looks like a misspelling. What a task puts out goes to each task that an edge leads to; without
``output`` that is a message of no bytes, which still takes a link's latency. An edge that is written twice is one edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import networkx as nx

from partitioner.errors import SpecError
from partitioner.ir.problem import Kind, Objective, Problem
from partitioner.ir.units import quote
from partitioner.spec.document import read_document
from partitioner.spec.entries import Faults
from partitioner.spec.taskmachine import TaskMachine
from partitioner.spec.tasktable import TaskTable, read_tasks
from partitioner.spec.topology import cycle, topological

LARGEST_GRAPH = 4 * 2**30
MOST_IN_A_CYCLE = 8

_GRAPH, _GRAPH_MORE = {"tasks": "a list of tasks"}, {"edges": "a list of pairs of names: the source, then the target"}

TaskGraphSource: TypeAlias = "Mapping[str, Any] | str | Path | nx.DiGraph[Any]"
Pairs = list[tuple[int, int]]


def read_problem(
    graph: TaskGraphSource, machine: TaskMachine, objective: Objective = "latency", contiguous: bool = False
) -> Problem:
    """The question that a task graph asks about a machine.

    Args:
        graph: the path of a ``.json`` file (or ``.yaml``, ``.yml``, ``.toml`` up to 1 MiB), a mapping of the same form, or a
            `networkx.DiGraph` whose nodes have the keys of a task, but for its name, as attributes.
        machine: where the tasks can run.
        objective: ``latency`` or ``throughput``.
        contiguous: no path of tasks leaves a device and comes back.

    Raises:
        SpecError: it cannot be read, or is wrong. Lists every fault with its path.

    >>> from partitioner.spec.taskmachine import read_machine
    >>> machine = read_machine({"devices": [{"name": "cpu", "kind": "cpu"}]})
    >>> tasks = [{"name": "b", "seconds": 1}, {"name": "a", "seconds": 2}]
    >>> read_problem({"tasks": tasks, "edges": [["a", "b"]]}, machine).tasks
    ('a', 'b')
    """
    name, where, document = _document(graph)
    faults = Faults(where)
    faults.fields("", document, _GRAPH, _GRAPH_MORE)
    entries = faults.entries("tasks", document["tasks"]) if "tasks" in document else []
    tasks = read_tasks(entries, machine.kinds, faults)
    edges = [] if document.get("edges") is None else faults.entries("edges", document["edges"])
    complete = isinstance(document.get("tasks"), list | tuple) and len(tasks.names) == len(entries)
    pairs = _pairs(edges, tasks.names, complete, faults)
    faults.check()
    order = topological(len(entries), pairs)
    if len(order) < len(entries):
        raise SpecError(_cycle(where, [tasks.names[task] for task in cycle(order, len(entries), pairs)]))
    return _problem(name, tasks.sorted(order), _renumbered(pairs, order), machine, objective, contiguous)


def _document(graph: TaskGraphSource) -> tuple[str, str, Mapping[str, Any]]:
    """The name of a graph, what errors call it, and its document."""
    if isinstance(graph, str | Path):
        return Path(graph).stem, quote(str(graph)), read_document(graph, "task graph", LARGEST_GRAPH)
    if isinstance(graph, nx.DiGraph):
        tasks = [{**attributes, "name": str(node)} for node, attributes in graph.nodes(data=True)]
        edges = [(str(source), str(target)) for source, target in graph.edges()]
        return str(graph.name) or "graph", "the graph", {"tasks": tasks, "edges": edges}
    if isinstance(graph, Mapping):
        return "graph", "the graph", dict(graph)
    raise SpecError(f"the graph: {quote(graph)} is no task graph; give a path, a mapping, or a networkx.DiGraph")


def _pairs(edges: list[Any], names: list[str], complete: bool, faults: Faults) -> Pairs:
    """Each edge once, as the numbers of its tasks."""
    number_of = {name: number for number, name in enumerate(names)}
    if all(type(edge) is list or type(edge) is tuple for edge in edges):
        try:
            pairs = [(number_of[source], number_of[target]) for source, target in edges]
            return list(dict.fromkeys(pairs))
        except (KeyError, TypeError, ValueError):
            pass  # each is looked at below
    for index, edge in enumerate(edges):
        if not isinstance(edge, list | tuple) or len(edge) != 2 or not all(isinstance(end, str) for end in edge):
            faults.add(f"edges[{index}]", f"{quote(edge)} should be a list of two names, the source and the target")
            continue
        for end, name in zip(("source", "target"), edge, strict=True):
            # A task that is itself faulty could be the one that is meant, so then no name is called unknown.
            if complete and name not in number_of:
                faults.add(f"edges[{index}]", f"its {end} {quote(name)} is no task{faults.hint(name, number_of)}")
    return []


def _cycle(where: str, names: list[str]) -> str:
    shown = [quote(name) for name in names]
    if len(shown) > MOST_IN_A_CYCLE:
        half = MOST_IN_A_CYCLE // 2
        shown = [*shown[:half], f"({len(shown) - 2 * half} more)", *shown[-half:]]
    return f"{where}: the edges form a cycle: {' -> '.join([*shown, shown[0]])}; no task of it can be the first, so remove one"


def _renumbered(pairs: Pairs, order: list[int]) -> Pairs:
    place = [0] * len(order)
    for new, old in enumerate(order):
        place[old] = new
    return [(place[source], place[target]) for source, target in pairs]


def _problem(
    name: str, tasks: TaskTable, pairs: Pairs, machine: TaskMachine, objective: Objective, contiguous: bool
) -> Problem:
    """A value for each task that another reads; groups and memory only if somebody wrote one."""
    value = {task: number for number, task in enumerate(dict.fromkeys(source for source, _ in pairs))}
    return Problem(
        name,
        tuple(tasks.names),
        tuple(Kind(kind, {1: table}) for kind, table in zip(machine.kinds, tasks.seconds, strict=True)),
        machine.processors,
        [(source, target, value[source]) for source, target in pairs],
        [(task, tasks.output[task]) for task in value],
        machine.channels,
        machine.routes,
        tasks.memory if any(tasks.memory) else (),
        tasks.group if len(set(tasks.group)) < len(tasks.group) else (),
        backward=frozenset(task for task, backward in enumerate(tasks.backward) if backward),
        objective=objective,
        contiguous=contiguous,
        overlap=machine.overlap,
    )
