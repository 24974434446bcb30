"""What the code of every host needs to know of a plan: where values are made, what crosses hosts, which events matter."""

from __future__ import annotations

from collections import defaultdict

from partitioner.backends.names import Names, variable
from partitioner.backends.nodes import constants_for
from partitioner.ir.conflicts import allocators
from partitioner.ir.overlap import runs_alone
from partitioner.ir.plan import Plan
from partitioner.ir.program import Record, Run, Wait, inputs_of, outputs_of

LONG_ALONE = 5e-4
"""Seconds that a task must run alone to get every thread: OpenMP's pool is started for it and sent home after it."""


class Context:
    """What the code of every host needs to know of the plan."""

    def __init__(self, plan: Plan, hosts: list[int]) -> None:
        self.plan, self.program, self.hosts = plan, plan.program, hosts
        self.nodes = {node.name: node for node in plan.graph.fx.nodes}
        lane = plan.placement.lane
        self.device = {op: plan.machine.lanes[lane[task]].torch_device for op, task in plan.tasks.task_of.items()}
        values = (*self.nodes, *(value.name for value in self.program.values))
        self.names = Names(values, constants_for(plan.graph, self.device.__getitem__))
        self.lane_of = {name: item.lane for item in self.program.instructions for name in outputs_of(item)}
        self.allocators = allocators(self.program)
        self.home = {name: hosts[self.lane_of.get(name, 0)] for name in (*self.program.inputs, *self.lane_of)}
        self.event_lanes = self._event_lanes()
        self.events = max(self.event_lanes, default=-1) + 1
        self.slots = self._slots()
        self.alone = self._alone()
        self.shared_cpu = max(hosts) > 0
        self.shares_first = self.shared_cpu and not next(iter(self.alone.values()), True)

    def _alone(self) -> dict[int, bool]:
        """Which Runs on the CPU get all of its threads: those that run alone, for long enough."""
        alone = runs_alone(self.program)
        for index in alone:
            item = self.program.instructions[index]
            assert isinstance(item, Run)
            seconds = self.plan.costs.time(self.ops(item.task), self.plan.machine.device_of(item.lane))
            alone[index] = alone[index] and seconds >= LONG_ALONE
        return alone

    def _event_lanes(self) -> dict[int, set[int]]:
        lanes: defaultdict[int, set[int]] = defaultdict(set)
        for item in self.program.instructions:
            if isinstance(item, Record | Wait):
                lanes[item.event].add(item.lane)
        return lanes

    def _slots(self) -> dict[str, int]:
        """A slot for each value that another host than its own reads, or that another host than the caller's returns."""
        crossing: dict[str, None] = {}
        for item in self.program.instructions:
            crossing.update((name, None) for name in inputs_of(item) if self.home[name] != self.hosts[item.lane])
        crossing.update((name, None) for name in self.program.outputs if self.home[name] != 0)
        return {name: number for number, name in enumerate(crossing)}

    def shared(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Inputs, by position, and state, by name, that several hosts use."""
        users: defaultdict[str, set[int]] = defaultdict(set)
        for item in self.program.instructions:
            names = [*inputs_of(item)]
            if isinstance(item, Run):
                names += (f"self.{name}" for op in self.ops(item.task) for name in self.plan.graph.by_name[op].state)
            for name in names:
                users[name].add(self.hosts[item.lane])
        several = [name for name, hosts in users.items() if len(hosts) > 1]
        inputs = tuple(number for number, name in enumerate(self.program.inputs) if name in several)
        state = (name.removeprefix("self.") for name in several if name.startswith("self."))
        return inputs, tuple(name for name in state if name not in self.plan.graph.constants)

    def reference(self, value: str, host: int) -> str:
        """How ``host`` reads a value."""
        return variable(value) if self.home[value] == host else f"S.slots[{self.slots[value]}]"

    def needs_event(self, event: int) -> bool:
        """Between CPU lanes of one host there is nothing to wait for."""
        lanes = self.event_lanes[event]
        crosses = len({self.hosts[lane] for lane in lanes}) > 1
        return crosses or any(self.program.lanes[lane].kind != "cpu" for lane in lanes)

    def belongs_to_no_lane(self, value: str) -> bool:
        """Memory of the CPU, and what is no tensor: a name may go after its last use, wherever the Free stands."""
        return self.program.by_name[value].torch_device in ("", "cpu")

    def is_late(self, lane: int, value: str) -> bool:
        """Whether a lane frees what another one allocated. Only lane 0 does, at the end, for all the others."""
        return any(self.allocators.get(storage, lane) != lane for storage in self.program.by_name[value].storages)

    def ops(self, task: str) -> tuple[str, ...]:
        """The ops of a task."""
        return self.plan.tasks.by_name[task].ops
