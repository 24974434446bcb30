"""Everything on one lane, in program order: the baseline, and what a plan falls back to when lanes do not pay.

Pins, colocations and memory caps are still honoured: what may not run on the first device runs on lane 0 of the first device
that may have it.
"""

from __future__ import annotations

from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs
from partitioner.ir.machine import Machine
from partitioner.ir.task import TaskGraph
from partitioner.planner.constraints import Constraints
from partitioner.planner.feasible import Feasible


def single(tasks: TaskGraph, costs: Costs, machine: Machine, constraints: Constraints) -> Assignment:
    """Place every task on the first lane that may have it.

    Raises:
        PlacementError: a task fits nowhere.
    """
    feasible = Feasible(tasks, costs, machine, constraints)
    lane: dict[str, int] = {}
    for task in tasks.tasks:
        lane[task.name] = feasible.lanes(task.name)[0]
        feasible.assign(task.name, lane[task.name])
    priority = {task.name: float(-number) for number, task in enumerate(tasks.tasks)}
    return Assignment("single", lane, priority, dict.fromkeys(lane, "everything on one lane"))
