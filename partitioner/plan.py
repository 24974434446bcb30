"""Everything that was decided about one program, from its graph to its instructions. What reports draw and backends emit."""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.analysis.cost import Costs
from partitioner.ir.graph import Graph
from partitioner.ir.placement import Placement
from partitioner.ir.program import Program
from partitioner.ir.task import TaskGraph
from partitioner.machine import Machine


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
    """

    graph: Graph
    machine: Machine
    costs: Costs
    tasks: TaskGraph
    placement: Placement
    program: Program

    def __str__(self) -> str:
        parts = (self.graph, self.costs, self.tasks, self.placement, self.program)
        return "\n\n".join(map(str, parts))

    def summary(self) -> str:
        """What was made, in a few lines."""
        used = sorted({item.lane for item in self.program.instructions})
        lanes = ", ".join(self.machine.lanes[lane].name for lane in used) or "no lane"
        tasks = len(self.tasks.tasks)
        counted = f"{len(self.graph.ops)} ops in {tasks} task{'s' if tasks != 1 else ''}"
        lines = [f"Parallel({self.graph.name}): {counted} on {lanes}"]
        lines.append(f"  traced by {self.graph.frontend}, placed by {self.placement.policy}")
        reasons = set(self.placement.reason.values())
        if len(reasons) == 1 and len(used) == 1:
            lines.append(f"  {reasons.pop()}")
        lines += (f"  note: {note}" for note in self.graph.notes)
        return "\n".join(lines)
