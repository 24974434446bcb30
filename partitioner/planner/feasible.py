"""Which lanes a task may still go to: pins, groups that are already somewhere, memory. Shared by every policy."""

from __future__ import annotations

from collections.abc import Mapping

from partitioner.errors import PlacementError
from partitioner.ir.cost import Costs
from partitioner.ir.machine import Machine
from partitioner.ir.task import Task, TaskGraph
from partitioner.ir.units import format_size
from partitioner.planner.constraints import Constraints


class Feasible:
    """What has been given to which device so far.

    Groups of tasks that must share a device are reserved as a whole when the first of them is placed, so that a later one
    never finds its device full.
    """

    def __init__(self, tasks: TaskGraph, costs: Costs, machine: Machine, constraints: Constraints) -> None:
        self.machine = machine
        self.group = task_groups(tasks, constraints)
        self.device: dict[str, str] = {}
        self.used = dict.fromkeys(machine.by_name, 0)
        self.demand: dict[str, int] = {}
        for task in tasks.tasks:
            group = self.group[task.name]
            self.demand[group] = self.demand.get(group, 0) + sum(costs.ops[op].state for op in task.ops)
            for op in task.ops:
                pinned = constraints.pinned(op)
                if pinned is not None:
                    self._pin(group, pinned, task)

    def _pin(self, group: str, device: str, task: Task) -> None:
        if self.device.setdefault(group, device) != device:
            raise PlacementError(f"task {task.name} ({task.ops[0]}, ...) is pinned to {device} and to {self.device[group]}")
        self.used[device] += self.demand[group]
        self.demand[group] = 0

    def lanes(self, task: str) -> list[int]:
        """The lanes that ``task`` may go to.

        Raises:
            PlacementError: it fits on no device.
        """
        group = self.group[task]
        fixed = self.device.get(group)
        allowed = [
            n
            for n, lane in enumerate(self.machine.lanes)
            if (lane.device_name == fixed if fixed else self._fits(lane.device_name, group))
        ]
        if not allowed:
            raise PlacementError(self._full(task))
        return allowed

    def assign(self, task: str, lane: int) -> None:
        """Note that ``task`` goes to ``lane``."""
        group, device = self.group[task], self.machine.lanes[lane].device_name
        if group not in self.device:
            self.device[group] = device
            self.used[device] += self.demand[group]

    def _fits(self, device: str, group: str) -> bool:
        cap = self.machine.by_name[device].memory
        return cap is None or self.used[device] + self.demand[group] <= cap

    def _full(self, task: str) -> str:
        lines = [
            f"task {task} needs {format_size(self.demand[self.group[task]])} of parameters and buffers, and no device has room:"
        ]
        for device in self.machine.devices:
            cap = "no cap" if device.memory is None else format_size(device.memory)
            lines.append(f"  {device.name}: {format_size(self.used[device.name])} used of {cap}")
        lines.append("Raise a memory cap, add a device, or remove a pin.")
        return "\n".join(lines)


def task_groups(tasks: TaskGraph, constraints: Constraints) -> Mapping[str, str]:
    """The group of each task: tasks whose ops share a group share a device."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for task in tasks.tasks:
        for op in task.ops:
            parent[find(f"group {constraints.group[op]}")] = find(f"task {task.name}")
    return {task.name: find(f"task {task.name}") for task in tasks.tasks}
