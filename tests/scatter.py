"""A policy that spreads tasks over lanes as widely as the constraints allow, whether that pays or not. For tests."""

from __future__ import annotations

import zlib

from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs
from partitioner.ir.machine import Machine
from partitioner.ir.task import TaskGraph
from partitioner.planner.constraints import Constraints
from partitioner.planner.feasible import Feasible


def scatter(tasks: TaskGraph, costs: Costs, machine: Machine, constraints: Constraints) -> Assignment:
    """Each task goes to a lane that follows from its ops' names, so that a plan is the same each time it is made."""
    feasible = Feasible(tasks, costs, machine, constraints)
    lane: dict[str, int] = {}
    for task in tasks.tasks:
        allowed = feasible.lanes(task.name)
        lane[task.name] = allowed[zlib.crc32("".join(task.ops).encode()) % len(allowed)]
        feasible.assign(task.name, lane[task.name])
    rank = {task.name: float(-number) for number, task in enumerate(tasks.tasks)}
    return Assignment("scatter", lane, rank, dict.fromkeys(lane, "scattered"))
