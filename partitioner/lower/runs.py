"""Placed tasks to a Program: the Runs of every lane, in one total issue order. Nothing is copied or waited for yet."""

from __future__ import annotations

from partitioner.ir.assignment import Assignment
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Machine
from partitioner.ir.program import Program, Run, Value
from partitioner.ir.task import TaskGraph


def schedule(tasks: TaskGraph, placement: Assignment, machine: Machine) -> Program:
    """Call the tasks, in the order that was decided.

    Args:
        tasks: what to run.
        placement: the lane of every task, and their order.
        machine: the lanes.

    Returns:
        A program of Runs, in that order.
    """
    graph, runs = tasks.graph, []
    for number in placement.order:
        task = tasks.tasks[number]
        runs.append(Run(placement.lanes[number], task.name, task.inputs, task.outputs, task.accesses))
    used = _inputs(tasks, placement, machine)
    made = (_value(graph, value, machine, run.lane) for run in runs for value in run.writes)
    return Program(
        graph.name, machine.lanes, (*used, *made), tuple(name for name, _ in graph.inputs), graph.outputs, tuple(runs)
    )


def _inputs(tasks: TaskGraph, placement: Assignment, machine: Machine) -> list[Value]:
    """Each graph input lies where it is first read: the caller's tensor is moved there if it is somewhere else."""
    home: dict[str, int] = {}
    for number in placement.order:
        for value in tasks.tasks[number].inputs:
            home.setdefault(value, placement.lanes[number])
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
