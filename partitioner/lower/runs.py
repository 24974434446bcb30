"""Placed tasks to a Program: the Runs of every lane, in one total issue order. Nothing is copied or waited for yet."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.assignment import Assignment
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Machine
from partitioner.ir.program import Program, Run, Value
from partitioner.ir.task import TaskGraph


def schedule(tasks: TaskGraph, placement: Assignment, machine: Machine, order: Sequence[str]) -> Program:
    """Call the tasks, in an order.

    Args:
        tasks: what to run.
        placement: the lane of every task.
        machine: the lanes.
        order: names of the tasks, in an order that respects every edge.

    Returns:
        A program of Runs, in that order.
    """
    graph, runs = tasks.graph, []
    for name in order:
        task = tasks.by_name[name]
        runs.append(Run(placement.lane[name], name, task.inputs, task.outputs, task.accesses))
    used = _inputs(tasks, placement, machine, order)
    made = (_value(graph, value, machine, run.lane) for run in runs for value in run.writes)
    return Program(
        graph.name, machine.lanes, (*used, *made), tuple(name for name, _ in graph.inputs), graph.outputs, tuple(runs)
    )


def _inputs(tasks: TaskGraph, placement: Assignment, machine: Machine, order: Sequence[str]) -> list[Value]:
    """Each graph input lies where it is first read: the caller's tensor is moved there if it is somewhere else."""
    home: dict[str, int] = {}
    for name in order:
        for value in tasks.by_name[name].inputs:
            home.setdefault(value, placement.lane[name])
    found = []
    for name, meta in tasks.graph.inputs:
        anywhere = meta is None and tasks.graph.observed  # a number, such as a size
        device = "" if anywhere else machine.lanes[home.get(name, 0)].torch_device
        found.append(Value(name, device, 0 if meta is None else meta.bytes, () if anywhere else (name,)))
    return found


def _value(graph: Graph, name: str, machine: Machine, lane: int) -> Value:
    op = graph.by_name[name]
    device = machine.lanes[lane].torch_device if op.tensor else ""
    return Value(name, device, op.bytes, op.storages)
