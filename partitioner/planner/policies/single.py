"""Everything on one lane, in program order: the baseline, and what a plan falls back to when lanes do not pay.

Pins, colocations and memory caps are still honoured: what may not run on the first device runs on lane 0 of the first device
that may have it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import placed
from partitioner.planner.feasible import Feasible
from partitioner.planner.latency.homes import Homes, closed


@dataclass(frozen=True)
class Single:
    """Every task on the first processor that may have it, on its first lane.

    Args:
        narrow: whether ops have a lane's share of a CPU's threads, where it has several lanes, and not all of them: two threads
            may be slower than one inside small ops.
    """

    narrow: bool = False

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: no placement that keeps pins, groups, memory caps and contiguity was found.
        """
        processors = Homes(closed(problem)).run(_first)
        found = placed(problem, "single", processors, note="everything on one lane")
        return replace(found, threads=[0] * len(problem.tasks)) if self.narrow else found


def _first(rules: Feasible) -> list[int]:
    """The first processor that each task may have."""
    processors = []
    for task in range(len(rules.problem.tasks)):
        processors.append(rules.processors(task)[0])
        rules.assign(task, processors[-1])
    return processors
