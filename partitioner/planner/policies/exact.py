"""The best schedule, proven: a constraint model of the clock, solved by CP-SAT from a good schedule onwards.

    list        12.3 ms
    search      11.9 ms
    CP-SAT      11.6 ms, at least 11.6 ms: the best there is

What is proven is proven for the model, which forbids nothing that the clock allows: a bound holds even where the best schedule
was not found in time. Problems that are too large for the solver get the quick bound and what list scheduling finds.

Needs ortools: ``pip install partitioner[exact]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

from partitioner.errors import PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import placed, scheduled
from partitioner.planner.latency.bounds import makespan_bound, relaxed
from partitioner.planner.latency.homes import closed
from partitioner.planner.latency.improve import improved
from partitioner.planner.latency.model import loading, solver_module
from partitioner.planner.latency.solve import solved, start_up, too_large
from partitioner.planner.latency.starts import starts
from partitioner.planner.latency.tries import Found, fixed_at, settled, uneven
from partitioner.planner.throughput.solve import balanced

LOADED, FIXED = 0.2, 0.5
"""Parts of the time: for the most even loads where processors differ, a start, and a bound for schedules; and after which the
solver orders tasks no more that stay where these loads are."""

BEFORE, AFTER = 0.1, 0.1
"""Parts of the time that go to local search before the solver starts, and after it where nothing is proven."""


LEAST = 0.1
"""Seconds that the solver must have to be of use."""


PER_PAIR = 3.5e-4
"""Likewise, for every task and every other one, where processors are unequal, memory is scarce or values travel: there local
search does more with less time."""


def worth_while(problem: Problem, seconds: float) -> bool:
    """Whether the solver would come to anything in so many seconds: its module is to be imported first."""
    least = max(LEAST, PER_PAIR * len(problem.tasks) ** 2) if uneven(problem) or problem.travels else LEAST
    return loading() + least < seconds


@dataclass(frozen=True)
class Exact:
    """CP-SAT, within a time limit.

    Args:
        time_limit: seconds, in all.
        workers: threads of the solver; 0: one for each core.
        seed: of the choices of the solver and of the search before it.

    >>> from partitioner.ir.problem import ORDER, Kind, Problem, Processor
    >>> lanes, times = Processor("cpu", 0, lanes=2), Kind("cpu", {1: [3.0, 3.0, 2.0, 2.0, 2.0]})
    >>> answer = Exact()(Problem("bag", ("a", "b", "c", "d", "e"), (times,), (lanes,), []))  # list scheduling: 7.0
    >>> answer.cost, answer.bound
    (6.0, 6.0)
    """

    time_limit: float = 10.0
    workers: int = 0
    seed: int = 0

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: no placement that keeps pins, groups, memory caps and contiguity was found.
            SpecError: ortools is not installed.
        """
        return self.beyond(problem, ())

    def beyond(self, problem: Problem, answers: Sequence[Assignment]) -> Assignment:
        """Likewise, from what other policies have answered, too."""
        started = perf_counter()
        solver_module()
        if problem.objective == "throughput":
            processors, bound = balanced(problem, self.time_limit, self.seed)
            return placed(problem, "exact", processors, bound=bound)
        ruled = closed(problem)
        tries, soon = 16 if len(problem.tasks) <= 500 else 1, started + (1 - AFTER) * self.time_limit
        bound = makespan_bound(ruled)
        known = starts(ruled, tries, bound, started + BEFORE * self.time_limit, answers)
        if known[0].seconds > bound * (1 + 1e-9) and uneven(ruled) and not too_large(ruled):
            with suppress(PlacementError):
                even, least = balanced(relaxed(ruled), LOADED * self.time_limit, self.seed)
                bound = max(bound, least * (1 - 1e-9))
                known = [*known, *self._ordered(ruled, even, tries, known[0].seconds, started + FIXED * self.time_limit)]
                known.sort(key=lambda each: each.seconds)
        found = known[0]
        if found.seconds > bound * (1 + 1e-9) and not too_large(ruled):
            found = improved(ruled, known, bound, started + BEFORE * self.time_limit, self.seed)
        if found.seconds > bound * (1 + 1e-9) and not too_large(ruled):
            if perf_counter() + start_up(ruled) < soon:
                found, bound = solved(ruled, found, bound, soon, self.workers, self.seed)
            if found.seconds > bound * (1 + 1e-6):  # what the model sends over channels in one order, the clock may in another
                found = improved(ruled, [found], bound, started + self.time_limit, self.seed)
        best = found.seconds <= bound * (1 + 1e-6)
        note = "proven to be the best" if best else "the best found in time"
        return scheduled(
            problem, "exact", found.lanes, found.order, bound=min(bound, found.seconds), note=note, ahead=found.ahead
        )

    def _ordered(self, problem: Problem, even: Sequence[int], tries: int, below: float, until: float) -> list[Found]:
        """Schedules with the processor of each task given; in the solver's order, too, if they may take less than ``below``."""
        found, fixed = settled(problem, even, tries)[:2], fixed_at(problem, even)
        least = makespan_bound(fixed)
        if least < below and perf_counter() + start_up(fixed) < until:
            found.append(solved(fixed, found[0], least, until, self.workers, self.seed)[0])
        return found
