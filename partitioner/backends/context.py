"""What the code of every host needs to know of a plan: where values are made, what crosses hosts, which events matter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from partitioner.backends.bodies import Body
from partitioner.backends.names import Names, variable
from partitioner.backends.nodes import bodies_for, op_devices
from partitioner.ir.conflicts import allocators
from partitioner.ir.gradient import Gradient
from partitioner.ir.plan import Plan
from partitioner.ir.program import Record, Run, Wait, inputs_of, outputs_of
from partitioner.ir.segment import wide_tasks

Term = tuple[str, str, int | None]
"""What is read of another segment while gradients are recorded: name of the term, the value, number of the tensor in it."""


class Context:
    """What the code of every host needs to know of the plan.

    Args:
        plan: what is emitted.
        hosts: the host of each lane.
        gradients: those that are handed over where its backward runs on lanes; none where autograd does that, or nobody.
        compiled: a function for each task that is called as one, by the task's name.
    """

    def __init__(self, plan: Plan, hosts: list[int], gradients: Sequence[Gradient], compiled: Mapping[str, Body]) -> None:
        self.plan, self.program, self.hosts, self.compiled = plan, plan.program, hosts, compiled
        self.nodes = plan.graph.nodes
        self.device = op_devices(plan)
        values = (*self.nodes, *(value.name for value in self.program.values))
        self.names = Names(values, bodies_for(plan.graph, self.device.get))
        self.position = {name: number for number, name in enumerate(plan.graph.arguments)}
        self.modes = list(dict.fromkeys(op.mode for op in plan.graph.ops if op.mode is not None))
        self.lane_of = {name: item.lane for item in self.program.instructions for name in outputs_of(item)}
        self.allocators = allocators(self.program)
        self.home = {name: hosts[lane] for name, lane in self.lane_of.items()}
        self.event_lanes = self._event_lanes()
        self.events = max(self.event_lanes, default=-1) + 1
        self.slots = self._slots()
        self.used_arguments = self._used_arguments()
        self.alone = self._alone()
        self.narrow = self._narrow()
        self.shared_cpu = max(hosts) > 0 or self.narrow > 1
        self.short = not any(self.alone.values()) and all(lane.kind == "cpu" for lane in self.program.lanes)
        self.parts, self.handed_over = self._passing(gradients)
        self.shares_first = self.shared_cpu and not next(iter(self.alone.values()), True)

    def _alone(self) -> dict[int, bool]:
        """Which Runs on the CPU get all of its threads."""
        wide, lanes = wide_tasks(self.plan.placement), self.program.lanes
        return {
            index: item.task in wide
            for index, item in enumerate(self.program.instructions)
            if isinstance(item, Run) and lanes[item.lane].kind == "cpu"
        }

    def _narrow(self) -> int:
        """Among how many lanes a CPU's threads are shared although one of them does everything; 1 if they are not."""
        used = {item.lane for item in self.program.instructions if isinstance(item, Run)}
        if len(used) != 1 or all(self.alone.values()):
            return 1
        device = self.plan.machine.device_of(*used)
        return device.lanes if device.cores > device.threads_per_lane else 1

    def _passing(self, gradients: Sequence[Gradient]) -> tuple[Mapping[str, list[Term]], Mapping[str, list[Gradient]]]:
        """By op, while gradients are recorded: what it reads of other segments, and what it makes that others read."""
        parts: defaultdict[str, list[Term]] = defaultdict(list)
        handed_over: defaultdict[str, list[Gradient]] = defaultdict(list)
        for gradient in gradients:
            handed_over[gradient.maker].append(gradient)
            for part in gradient.parts:
                parts[part.op].append((gradient.term(part), part.value, part.leaf))
        return dict(parts), dict(handed_over)

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
            crossing.update(
                (name, None) for name in inputs_of(item) if self.home.get(name, self.hosts[item.lane]) != self.hosts[item.lane]
            )
        crossing.update((name, None) for name in self.program.outputs if self.home.get(name, 0) != 0)
        return {name: number for number, name in enumerate(crossing)}

    def _used_arguments(self) -> list[list[str]]:
        """For each host the arguments of the program, state included, that it uses, in order."""
        used: list[set[str]] = [set() for _ in range(max(self.hosts) + 1)]
        for item in self.program.instructions:
            mine = used[self.hosts[item.lane]]
            mine.update(filter(self.position.__contains__, inputs_of(item)))
            for op in self.ops(item.task) if isinstance(item, Run) else ():
                mine.update(source.name for source in self.nodes[op].all_input_nodes if source.name in self.plan.graph.states)
        returned = self.plan.graph.fx.output_node().all_input_nodes
        used[0].update(node.name for node in returned if node.name in self.position)
        return [sorted(names, key=self.position.__getitem__) for names in used]

    def shared(self) -> tuple[int, ...]:
        """The arguments, by position, that several hosts use."""
        hosts = Counter(name for names in self.used_arguments for name in names)
        return tuple(self.position[name] for name, count in hosts.items() if count > 1)

    def reference(self, value: str, host: int) -> str:
        """How ``host`` reads a value."""
        return variable(value) if self.home.get(value, host) == host else f"S.slots[{self.slots[value]}]"

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
