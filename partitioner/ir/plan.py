"""Everything that was decided about one program, from its graph to its instructions. What reports draw and backends emit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs
from partitioner.ir.graph import Graph, StateMeta
from partitioner.ir.machine import Machine
from partitioner.ir.memory import Memory, Weight
from partitioner.ir.program import Program
from partitioner.ir.task import TaskGraph
from partitioner.ir.units import format_duration
from partitioner.ir.words import few

Entry = TypeVar("Entry", StateMeta, Weight)


@dataclass(frozen=True)
class Tried:
    """A plan that was run on the examples: what was predicted of it and what it took, in seconds."""

    name: str
    predicted: float
    measured: float

    def __str__(self) -> str:
        return f"{self.name} {format_duration(self.measured)} (predicted {format_duration(self.predicted)})"


@dataclass(frozen=True, eq=False)
class Plan:
    """The result of planning.

    Args:
        graph: the traced model.
        machine: the devices and lanes that it was planned for.
        costs: seconds and bytes of every op.
        tasks: how ops were grouped.
        placement: where each task runs, and why.
        program: the verified instructions.
        state: what the parameters, buffers and constants take that its ops use, by qualified name.
        serial: expected seconds of one call on the first device alone; ``None`` where no shapes are known.
        makespan: expected seconds of one call of the program; likewise.
        memory: what its ops take; ``None`` where nobody asks, for the machine has no caps, or no shapes are known.
    """

    graph: Graph
    machine: Machine
    costs: Costs
    tasks: TaskGraph
    placement: Assignment
    program: Program
    state: Mapping[str, StateMeta] = field(default_factory=dict)
    serial: float | None = None
    makespan: float | None = None
    memory: Memory | None = None

    @property
    def in_a_row(self) -> float:
        """Seconds of all ops, one after the other, on one lane of the first device."""
        return self.costs.time(self.costs.ops, self.machine.devices[0])

    def __str__(self) -> str:
        parts = (self.graph, self.costs, self.tasks, self.placement, self.program)
        return "\n\n".join(map(str, parts))

    def summary(self) -> str:
        """What was made, in a few lines."""
        used = sorted({item.lane for item in self.program.instructions})
        lanes = few([self.machine.lanes[lane].name for lane in used]) or "no lane"
        tasks = len(self.tasks.tasks)
        counted = f"{len(self.graph.ops)} ops in {tasks} task{'s' if tasks != 1 else ''}"
        lines = [f"Parallel({self.graph.name}): {counted} on {lanes}"]
        lines.append(f"  traced by {self.graph.tracer}, placed by {self.placement.policy}")
        if self.serial and self.makespan:
            gain = f"{self.serial / self.makespan:.2f}x as fast as one device"
            figures = ", on assumed hardware figures" if self.machine.assumed else ""
            if self.costs.measured:
                figures = f", {self.costs.share_measured(self.machine.devices[0]):.0%} of it from measured ops"
            lines.append(f"  expected{figures}: {format_duration(self.makespan)} a call, {gain}")
        if self.placement.bound and len(self.machine.lanes) > 1:
            lines.append(f"  {self._least()}")
        reasons = set(self.placement.reason.values())
        if len(reasons) == 1 and len(used) == 1:
            lines.append(f"  {reasons.pop()}")
        lines += (f"  note: {note}" for note in self.graph.notes)
        return "\n".join(lines)

    def _least(self) -> str:
        """What was made small, beside what no plan can beat."""
        placement = self.placement
        least = placement.shown(placement.bound)
        if placement.objective == "latency":
            gap = max(0.0, 1 - placement.bound / self.makespan) if self.makespan else placement.gap
            return f"no plan of these tasks takes less than {least}: a gap of {gap:.1%}"
        what = {
            "throughput": "the busiest device is busy for {} a call",
            "memory": "the fullest device holds {} of parameters, buffers and what training keeps for them",
        }[placement.objective]
        done = what.format(placement.shown(placement.cost))
        return f"{done}, and no plan brings that below {least}: a gap of {placement.gap:.1%}"


def resident_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of parameters, buffers and constants on each torch device; tied ones count once."""
    total: Counter[str] = Counter()
    for device, _, entry in each_once(plan, plan.state):
        total[device] += entry.kept
    return dict(total)


def each_once(plan: Plan, table: Mapping[str, Entry]) -> Iterator[tuple[str, str, Entry]]:
    """Torch device, name and entry of the state of a plan that a table knows; of those in one storage, the first."""
    counted: set[int] = set()
    for name, device in state_devices(plan).items():
        if name in table and table[name].storage not in counted:
            counted.add(table[name].storage)
            yield device, name, table[name]


def state_devices(plan: Plan) -> dict[str, str]:
    """The torch device on which each parameter, buffer and constant of a plan is used."""
    lanes, lane, task_of = plan.machine.lanes, plan.placement.lane, plan.tasks.task_of
    return {name: lanes[lane[task_of[op.name]]].torch_device for op in plan.graph.ops for name in op.state}
