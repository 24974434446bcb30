"""Placed tasks to a Program: the Runs of every lane, in one total issue order. Nothing is copied or waited for yet.

List scheduling: of the tasks that may start, the one that can start earliest is issued next, and of those the one of the
highest rank. With all on one lane that is rank order, which `single` makes program order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from partitioner.analysis.cost import Costs
from partitioner.ir.graph import Graph
from partitioner.ir.placement import Placement
from partitioner.ir.program import Program, Run, Value
from partitioner.ir.task import TaskGraph
from partitioner.machine import Machine


def schedule(tasks: TaskGraph, placement: Placement, costs: Costs) -> Program:
    """Order the tasks.

    Args:
        tasks: what to run.
        placement: lane and rank of every task.
        costs: seconds of every op, with the machine.

    Returns:
        A program of Runs, in an order that respects every edge.
    """
    machine, graph = costs.machine, tasks.graph
    order = list(issue_order(tasks, placement, costs))
    runs = []
    for name in order:
        task = tasks.by_name[name]
        runs.append(Run(placement.lane[name], name, task.inputs, task.outputs, task.accesses))
    used = _inputs(tasks, placement, machine, order)
    made = (_value(graph, value, machine, run.lane) for run in runs for value in run.writes)
    return Program(
        graph.name, machine.lanes, (*used, *made), tuple(name for name, _ in graph.inputs), graph.outputs, tuple(runs)
    )


def issue_order(tasks: TaskGraph, placement: Placement, costs: Costs) -> Iterator[str]:
    """Names of the tasks, in the order in which they are issued."""
    machine = costs.machine
    free = [0.0] * len(machine.lanes)
    waiting = {task.name: len(tasks.predecessors[task.name]) for task in tasks.tasks}
    ready = dict.fromkeys(waiting, 0.0)
    position = {task.name: number for number, task in enumerate(tasks.tasks)}
    heap = [(0.0, -placement.rank[name], position[name], name) for name, count in waiting.items() if not count]
    heapq.heapify(heap)
    while heap:
        start, priority, number, name = heapq.heappop(heap)
        lane = placement.lane[name]
        now = max(free[lane], ready[name])
        if now > start:  # the lane was taken in the meantime
            heapq.heappush(heap, (now, priority, number, name))
            continue
        yield name
        device = machine.device_of(lane)
        end = free[lane] = now + costs.time(tasks.by_name[name].ops, device, device.threads_per_lane)
        for after in tasks.successors[name]:
            issue_only = (name, after) in tasks.random_only and device.kind != "cpu"
            arrival = now if issue_only else end + machine.transfer_time(lane, placement.lane[after], 0)
            ready[after] = max(ready[after], arrival)
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(heap, (ready[after], -placement.rank[after], position[after], after))


def _inputs(tasks: TaskGraph, placement: Placement, machine: Machine, order: list[str]) -> list[Value]:
    """Each graph input lies where it is first read: the caller's tensor is moved there if it is somewhere else."""
    home: dict[str, int] = {}
    for name in order:
        for value in tasks.by_name[name].inputs:
            home.setdefault(value, placement.lane[name])
    return [
        Value(name, machine.lanes[home.get(name, 0)].torch_device, 0 if meta is None else meta.bytes, (name,))
        for name, meta in tasks.graph.inputs
    ]


def _value(graph: Graph, name: str, machine: Machine, lane: int) -> Value:
    op = graph.by_name[name]
    device = machine.lanes[lane].torch_device if op.tensor else ""
    return Value(name, device, op.bytes, op.storages)
