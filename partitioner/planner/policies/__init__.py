"""Policies: where every task runs. A new one is a file of its own and a line here.

One that falls back to a single lane where others do not pay is wrapped here: policies do not know each other.
"""

from __future__ import annotations

from collections.abc import Callable

from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs
from partitioner.ir.machine import Machine
from partitioner.ir.task import TaskGraph
from partitioner.planner.constraints import Constraints
from partitioner.planner.policies.by_level import by_level
from partitioner.planner.policies.single import single

Policy = Callable[[TaskGraph, Costs, Machine, Constraints], Assignment]

MIN_SPEEDUP = 1.10
"""Lanes must be predicted to be this much faster than one lane; less is within the error of the estimate."""


def _or_serial(policy: Policy) -> Policy:
    """``policy``, or one lane if that is no slower; the reason says so then."""

    def place(tasks: TaskGraph, costs: Costs, machine: Machine, constraints: Constraints) -> Assignment:
        parallel, serial = policy(tasks, costs, machine, constraints), single(tasks, costs, machine, constraints)
        makespan, alone = parallel.makespan, _serial_time(tasks, costs, machine, serial)
        if len(set(parallel.lane.values())) == 1 or makespan * MIN_SPEEDUP < alone:
            return parallel
        gain = alone / makespan if makespan else 1.0
        reason = f"serial, because lanes were predicted to give {gain:.2f}x and {MIN_SPEEDUP:.2f}x is the least that counts"
        return Assignment(parallel.policy, serial.lane, serial.priority, dict.fromkeys(serial.lane, reason))

    return place


def _serial_time(tasks: TaskGraph, costs: Costs, machine: Machine, serial: Assignment) -> float:
    """Seconds on one lane, which on a CPU may use every core. Infinite if constraints need several devices."""
    lanes = set(serial.lane.values())
    if len(lanes) != 1:
        return float("inf")
    device = machine.device_of(lanes.pop())
    return sum(costs.time(task.ops, device, device.cores) for task in tasks.tasks)


POLICIES: dict[str, Policy] = {
    "by_level": _or_serial(by_level),
    "single": single,
}
