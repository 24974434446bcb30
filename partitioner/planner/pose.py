"""A model's tasks and a machine, as a Problem: names become numbers, ops become seconds and bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from math import inf

from networkx.utils import UnionFind

from partitioner.errors import PlacementError
from partitioner.ir.cost import Costs
from partitioner.ir.machine import Device, Machine
from partitioner.ir.memory import Memory
from partitioner.ir.problem import ISSUE, ORDER, Channel, Kind, Objective, Problem, Processor
from partitioner.ir.task import Task, TaskGraph
from partitioner.planner.constraints import Constraints
from partitioner.planner.memory import demands
from partitioner.planner.seconds import issue_seconds, lane_seconds, share


def pose(
    tasks: TaskGraph,
    costs: Costs,
    machine: Machine,
    constraints: Constraints,
    objective: Objective = "latency",
    memory: Memory | None = None,
) -> Problem:
    """The problem that a policy solves for a model.

    Args:
        tasks: what to place.
        costs: seconds and bytes of every op.
        machine: lanes and links.
        constraints: pins and groups.
        objective: what to make small.
        memory: what ops take; with it, tasks that are trained hold gradients and what the optimizer keeps, too.

    Raises:
        PlacementError: ops of one task are pinned apart.
    """
    group = _groups(tasks, constraints)
    kinds, number = _kinds(tasks, costs, machine)
    processors = tuple(
        Processor(
            each.name, number[each.name], each.lanes, inf if each.memory is None else each.memory, _cores(each), each.handoff
        )
        for each in machine.devices
    )
    sizes, makers = _sizes(tasks), _makers(tasks)
    channels, routes = _ways(machine)
    return Problem(
        name=tasks.graph.name,
        tasks=tuple(task.name for task in tasks.tasks),
        kinds=kinds,
        processors=processors,
        edges=list(_edges(tasks, makers)),
        values=[(task, sizes[name]) for name, task in makers.items()],
        channels=channels,
        routes=routes,
        given=list(_given(tasks, sizes, makers)),
        memory=demands(tasks, costs, memory),
        group=group,
        pin=_pins(tasks, machine, constraints, group),
        labels=[" ".join(task.ops) for task in tasks.tasks],
        objective=objective,
        fetched=True,
    )


def _sizes(tasks: TaskGraph) -> dict[str, int]:
    """Bytes of every tensor that is an argument of the call or an output of a task."""
    graph = tasks.graph
    ops = [graph.by_name[name] for task in tasks.tasks for name in task.outputs]
    found = {name: 0 if meta is None else meta.bytes for name, meta in graph.inputs if meta is not None or not graph.observed}
    return found | {op.name: op.bytes for op in ops if op.tensor}


def _makers(tasks: TaskGraph) -> dict[str, int]:
    """The task after which each value is what others get to see: that which makes it or, later, writes its storage.

    Arguments of the call that nobody writes have none. What reads a storage before it is written for the last time shares its
    device, see `planner/constraints.py`: nothing travels before.
    """
    last = {access.resource: number for number, task in enumerate(tasks.tasks) for access in task.accesses if access.write}
    found = {name: last[name] for name, _ in tasks.graph.inputs if name in last}
    for number, task in enumerate(tasks.tasks):
        for op in (tasks.graph.by_name[name] for name in task.outputs):
            if op.tensor:
                found[op.name] = max([number, *(last.get(storage, number) for storage in op.storages)])
    return found


def _given(tasks: TaskGraph, sizes: Mapping[str, int], makers: Container[str]) -> Iterator[tuple[float, list[int]]]:
    """Each tensor among the arguments of the call that nobody writes, and the tasks that read it."""
    readers: defaultdict[str, list[int]] = defaultdict(list)
    for number, task in enumerate(tasks.tasks):
        for name in task.inputs:
            readers[name].append(number)
    for name, _ in tasks.graph.inputs:
        if name in sizes and name not in makers:
            yield sizes[name], readers[name]


def _kinds(tasks: TaskGraph, costs: Costs, machine: Machine) -> tuple[tuple[Kind, ...], dict[str, int]]:
    """Devices of equal figures are of one kind; the number of each device's kind."""
    kinds: dict[tuple[object, ...], int] = {}
    number: dict[str, int] = {}
    found: list[Kind] = []
    for each in machine.devices:
        figures = (each.kind, each.flops, each.bandwidth, each.overhead, each.cores, each.threads_per_lane)
        if figures not in kinds:
            kinds[figures] = len(found)
            found.append(_kind(tasks.tasks, costs, each))
        number[each.name] = kinds[figures]
    return tuple(found), number


def _kind(tasks: tuple[Task, ...], costs: Costs, device: Device) -> Kind:
    widths = sorted({max(1, _cores(device) // device.lanes), _cores(device)})
    seconds = {width: [lane_seconds(costs, task.ops, device, width) for task in tasks] for width in widths}
    host = device.kind != "cpu"
    issue = [issue_seconds(costs, task.ops, device) for task in tasks] if host else None
    return Kind(device.kind, seconds, issue, [share(costs, task.ops, device) for task in tasks])


def _cores(device: Device) -> int:
    """The threads of all lanes of a CPU together."""
    return device.cores if device.kind == "cpu" else 1


def _edges(tasks: TaskGraph, makers: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    number = {task.name: index for index, task in enumerate(tasks.tasks)}
    value = {name: index for index, name in enumerate(makers)}
    for source, target in tasks.edges:
        pair = number[source], number[target]
        moved = [value[name] for name in tasks.by_name[target].inputs if makers.get(name) == pair[0]]
        yield from ((*pair, each) for each in moved)
        if not moved:
            yield *pair, ISSUE if (source, target) in tasks.random_only else ORDER


def _ways(machine: Machine) -> tuple[tuple[Channel, ...], dict[tuple[int, int], tuple[int, ...]]]:
    """One channel for each ordered pair of devices: links of models are one-way."""
    channels: list[Channel] = []
    routes: dict[tuple[int, int], tuple[int, ...]] = {}
    for one, source in enumerate(machine.devices):
        for other, target in enumerate(machine.devices):
            if one != other:
                link = machine.link(source.name, target.name)
                routes[one, other] = (len(channels),)
                channels.append(Channel(f"{source.name} -> {target.name}", link.bandwidth, link.latency, (one, other)))
    return tuple(channels), routes


def _groups(tasks: TaskGraph, constraints: Constraints) -> list[int]:
    """The group of each task: tasks whose ops share a group share a device."""
    together: UnionFind[tuple[str, str]] = UnionFind()
    for task in tasks.tasks:
        together.union(("task", task.name), *(("group", constraints.group[op]) for op in task.ops))
    numbers: dict[tuple[str, str], int] = {}
    return [numbers.setdefault(together["task", task.name], len(numbers)) for task in tasks.tasks]


def _pins(tasks: TaskGraph, machine: Machine, constraints: Constraints, group: list[int]) -> dict[int, int]:
    number = {device.name: index for index, device in enumerate(machine.devices)}
    pins: dict[int, int] = {}
    for task, own in zip(tasks.tasks, group, strict=True):
        for op in task.ops:
            pinned = constraints.pinned(op)
            if pinned is not None and pins.setdefault(own, number[pinned]) != number[pinned]:
                other = machine.devices[pins[own]].name
                raise PlacementError(f"task {task.name} ({task.ops[0]}, ...) is pinned to {pinned} and to {other}")
    return pins
