"""Branches on as many lanes as there are, as if handing over cost nothing: for `tune`, which measures what that gives.

Predictions are wrong where nothing is known of an op, and a plan that is never made is never measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import scheduled
from partitioner.planner.latency.homes import Homes, closed
from partitioner.planner.latency.tries import best_of


@dataclass(frozen=True)
class Spread:
    """List scheduling on a machine whose lanes share nothing and wait for nothing."""

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: a task fits nowhere.
        """
        free = replace(
            problem,
            processors=tuple(replace(each, handoff=0.0) for each in problem.processors),
            kinds=tuple(replace(each, share=None, issue=None) for each in problem.kinds),
        )
        ruled = closed(free)
        found = best_of(ruled, Homes(ruled), 1)
        return scheduled(problem, "spread", found.lanes, found.order, note="as if a hand-off cost nothing")
