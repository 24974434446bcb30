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
