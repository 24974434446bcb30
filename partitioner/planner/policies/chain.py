"""Optimal contiguous stages: what one processor does is never interrupted by what another one does.

    tasks   a > b > c > d > e
    gpu0    a   b                     the cut is where the larger of the two loads is smallest,
    gpu1            c   d   e         with what passes it

Over all down-closed sets of the tasks where these are few ("Efficient Algorithms for Device Placement of DNN Graph Operators",
Tarnawski et al., NeurIPS 2020), and over several orders of the tasks where they are many.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import placed
from partitioner.planner.throughput.solve import stages


@dataclass(frozen=True)
class Chain:
    """Stages with the smallest largest load. For the latency of one call, the same stages: one after the other, balanced.

    Args:
        time_limit: seconds, after which no further orders are tried.
        most_ideals: down-closed sets of tasks up to which all of them are looked at.
        most_orders: orders of the tasks that are tried. With no limit of time the answer is the same on every machine.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> cpu, edges = Kind("cpu", {1: [1.0, 3.0, 2.0]}), [(0, 1, -1), (1, 2, -1)]
    >>> problem = Problem("p", ("a", "b", "c"), (cpu,), (Processor("x", 0),) * 2, edges, objective="throughput")
    >>> print(Chain()(problem).cost)
    4.0
    """

    time_limit: float = 5.0
    most_ideals: int = 4_000
    most_orders: int = 12

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: no contiguous stages fit.
        """
        processors, bound = stages(problem, self.most_orders, self.most_ideals, self.time_limit)
        bound = bound if problem.objective == "throughput" and problem.contiguous else 0.0
        sizes = {processor: processors.count(processor) for processor in set(processors)}
        number = {processor: place for place, processor in enumerate(dict.fromkeys(processors), 1)}
        reasons = [f"stage {number[each]} of {len(number)}, with {sizes[each]} tasks" for each in processors]
        return placed(problem, "chain", processors, bound=bound, reasons=reasons)
