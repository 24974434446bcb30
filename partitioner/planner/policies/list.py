"""List scheduling: the most urgent task first, to the lane on which it ends first, into a gap if there is one.

    upward ranks    a 7   b 5   c 4   d 1          the longest way from a task's start to the end of all

    lane 0   | a | b     | d |
    lane 1       | c   |

With more than one try, several notions of urgency compete, and schedules are pulled together from both ends. Large graphs get
fewer tries: one for 10^4 tasks and more.

Sources: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
TPDS 13(3), 2002 (upward rank, insertion); Arabnejad and Barbosa, IEEE TPDS 25(3), 2014 (optimistic costs); Li and Willis, EJOR
56, 1992 (forwards and backwards in turns).
"""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import placed, scheduled
from partitioner.planner.latency.bounds import makespan_bound
from partitioner.planner.latency.homes import Homes, closed
from partitioner.planner.latency.loads import evened
from partitioner.planner.latency.tries import best_of

TASKS_IN_ALL = 1500
"""Tasks that the tries for one problem place together, but for the first try."""


@dataclass(frozen=True)
class List:
    """List scheduling by upward rank.

    Args:
        tries: schedules to make, at most; the best is kept. 1: plain upward rank.

    >>> from partitioner.ir.problem import ORDER, Kind, Problem, Processor
    >>> seconds = Kind("cpu", {1: [2.0, 4.0, 3.0, 1.0]})
    >>> edges = [(0, 1, ORDER), (0, 2, ORDER), (1, 3, ORDER), (2, 3, ORDER)]
    >>> answer = List()(Problem("diamond", ("a", "b", "c", "d"), (seconds,), (Processor("cpu", 0, lanes=2),), edges))
    >>> answer.cost, answer.bound
    (7.0, 7.0)
    """

    tries: int = 16

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: no placement that keeps pins, groups, memory caps and contiguity was found.
        """
        ruled = closed(problem)
        homes = Homes(ruled)
        if problem.objective == "throughput":
            return placed(problem, "list", homes.run(lambda rules: evened(ruled, rules)))
        found = best_of(ruled, homes, max(1, min(self.tries, TASKS_IN_ALL // max(1, len(problem.tasks)))))
        bound = min(makespan_bound(ruled), found.seconds)
        return scheduled(problem, "list", found.lanes, found.order, bound=bound, note=f"by upward rank: {found.rank}")
