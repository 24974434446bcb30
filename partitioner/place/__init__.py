"""Policies: where every task runs. A new one is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable

from partitioner.analysis.constraints import Constraints
from partitioner.analysis.cost import Costs
from partitioner.ir.placement import Placement
from partitioner.ir.task import TaskGraph
from partitioner.machine import Machine
from partitioner.place.by_level import by_level
from partitioner.place.single import single

Policy = Callable[[TaskGraph, Costs, Machine, Constraints], Placement]

POLICIES: dict[str, Policy] = {
    "by_level": by_level,
    "single": single,
}
