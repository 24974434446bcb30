"""Local search from the best list schedule, for as long as it may: every answer on the way is a whole schedule.

    list      12.3 ms      0.0 s
    search    11.9 ms      0.4 s     c from lane 0 to lane 1
              11.6 ms      2.1 s     e before d

Sources: see `planner/latency/improve.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import placed, scheduled
from partitioner.planner.latency.bounds import makespan_bound
from partitioner.planner.latency.homes import closed
from partitioner.planner.latency.improve import ENOUGH, FURTHER, MOST_MOVED, improved
from partitioner.planner.latency.starts import starts
from partitioner.planner.throughput.solve import balanced

MOST_TASKS = 20_000
"""Tasks beyond which one schedule takes so long that nothing is searched."""


@dataclass(frozen=True)
class Search:
    """Simulated annealing on the clock.

    Args:
        time_limit: seconds, in all; it ends before if an answer is proven to be the best.
        seed: of all that is left to chance.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> lanes, times = Processor("cpu", 0, lanes=2), Kind("cpu", {1: [3.0, 3.0, 2.0, 2.0, 2.0]})
    >>> Search(time_limit=1.0)(Problem("bag", ("a", "b", "c", "d", "e"), (times,), (lanes,), [])).cost  # list: 7.0
    6.0
    """

    time_limit: float = 5.0
    seed: int = 0

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: no placement that keeps pins, groups, memory caps and contiguity was found.
        """
        return self.beyond(problem, ())

    def beyond(self, problem: Problem, answers: Sequence[Assignment]) -> Assignment:
        """Likewise, from what other policies have answered, too: the result is no worse than theirs."""
        until = perf_counter() + self.time_limit
        if problem.objective == "throughput":
            homes = [[problem.lanes[lane] for lane in each.lanes] for each in answers]
            processors, bound = balanced(problem, self.time_limit, self.seed, homes)
            return placed(problem, "search", processors, bound=bound)
        ruled = closed(problem)
        tries, bound = max(1, min(32, MOST_TASKS // max(1, len(problem.tasks)))), makespan_bound(ruled)
        known = starts(ruled, tries, bound, until, answers)
        found = known[0]
        if found.seconds > bound * (1 + 1e-9) and len(problem.tasks) <= MOST_TASKS:
            share = FURTHER if answers and len(problem.tasks) <= MOST_MOVED else ENOUGH
            found = improved(ruled, known, bound, until, self.seed, share=share)
        note = f"the best found by {found.rank}"
        bound = min(bound, found.seconds)
        return scheduled(problem, "search", found.lanes, found.order, bound=bound, note=note, ahead=found.ahead)
