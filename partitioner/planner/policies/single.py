"""Everything on one lane, in program order: the baseline, and what a plan falls back to when lanes do not pay.

Pins, colocations and memory caps are still honoured: what may not run on the first device runs on lane 0 of the first device
that may have it.
"""

from __future__ import annotations

from partitioner.ir.assignment import Placement
from partitioner.ir.cost import Costs
from partitioner.ir.machine import Machine
from partitioner.ir.task import TaskGraph
from partitioner.planner.constraints import Constraints
from partitioner.planner.feasible import Ledger


def single(tasks: TaskGraph, costs: Costs, machine: Machine, constraints: Constraints) -> Placement:
    """Place every task on the first lane that may have it.

    Raises:
        PlacementError: a task fits nowhere.
    """
    ledger = Ledger(tasks, costs, machine, constraints)
    lane: dict[str, int] = {}
    for task in tasks.tasks:
        lane[task.name] = ledger.lanes(task.name)[0]
        ledger.take(task.name, lane[task.name])
    rank = {task.name: float(-number) for number, task in enumerate(tasks.tasks)}
    return Placement("single", lane, rank, dict.fromkeys(lane, "everything on one lane"))
