"""Several policies within a time budget, the best answer and the best bound: what to ask for when one does not know.

Quick policies run first, then those that improve on them for as long as there is time and a gap to the bound. What no better
answer than the best so far has apart is together from then on. What needs OR-tools is left out where it is not installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import inf

from partitioner.errors import PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.latency.homes import closed
from partitioner.planner.latency.inseparable import inseparable
from partitioner.planner.latency.tries import tries_for
from partitioner.planner.policies.by_level import ByLevel
from partitioner.planner.policies.exact import Exact, worth_while
from partitioner.planner.policies.fit import Fit
from partitioner.planner.policies.list import List
from partitioner.planner.policies.search import Search
from partitioner.planner.policies.single import Single

SMALL, MIDDLE = 2_000, 50_000
"""Tasks up to which every policy is tried, and up to which those are that take more than one look at a task."""

LIST_SHARE, FEW_SHARE, FEW = {"latency": 0.5, "throughput": 0.7, "memory": 0.7}, 0.25, 40
"""Parts of the time after which list scheduling tries no more: by the objective, and where the solver may prove what is the
best, which is up to so many tasks."""

SOLVER_SHARE = 0.6
"""Part of the time that the solver may take before local search has the rest."""

LOOKS = {"latency": 1, "throughput": 2, "memory": 1}
"""How often a policy looks at all tasks, by the objective, before it looks at the time."""

CLOSE = 1e-6
"""A gap that is not worth more time."""

THOROUGH, PER_TASK = 0.6, 2e-4
"""Seconds, and those for each task, from which on list scheduling may try more than once; by what is asked for and not by
the clock, for it to give the same on every machine."""


@dataclass(frozen=True)
class Auto:
    """The best of what runs within ``time_limit`` seconds; ``seed`` is the search's."""

    time_limit: float = 2.0
    seed: int = 0

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: no policy found room for all of them.
        """
        began, problem = time.monotonic(), closed(problem)
        deadline, look = began + self.time_limit, 0.0
        best: Assignment | None = None
        answers: list[Assignment] = []
        tries = tries_for(problem, List.tries) if self.thorough(problem) else 1
        bound, reason = 0.0, PlacementError("no policy was tried")
        for policy in self.policies(problem, lambda: max(0.0, deadline - time.monotonic())):
            if best is not None and (best.cost - bound <= CLOSE * best.cost or time.monotonic() + look > deadline):
                break
            try:
                answer = policy.beyond(problem, answers) if isinstance(policy, Exact | Search) else policy(problem)
            except PlacementError as error:
                reason = error
                continue
            answers.append(answer)
            bound = max(bound, min(answer.bound, best.cost if best else inf))
            look = look or LOOKS[problem.objective] * min((time.monotonic() - began) / tries, PER_TASK * len(problem.tasks))
            if best is None or answer.cost < best.cost:
                best, problem = answer, inseparable(problem, answer.cost)
                answers = [each for each in answers if _has_groups(problem, each)]
        if best is None:
            raise reason
        return replace(best, policy=f"auto, {best.policy}", bound=min(bound, best.cost))

    def thorough(self, problem: Problem) -> bool:
        """Whether there is time for more than one list schedule."""
        return self.time_limit >= THOROUGH + PER_TASK * len(problem.tasks)

    def policies(self, problem: Problem, left: Callable[[], float]) -> Iterator[Callable[[Problem], Assignment]]:
        """What to run, in order, each with its part of the time that is left; those that search begin at the answers so far."""
        count, solver = len(problem.tasks), find_spec("ortools") is not None
        proves = solver and count <= FEW
        if proves and problem.objective == "latency":
            proves = worth_while(problem, SOLVER_SHARE * (1 - FEW_SHARE) * left())
        share = FEW_SHARE if proves else LIST_SHARE[problem.objective]
        yield List(time_limit=share * left()) if self.thorough(problem) else List(tries=1)
        if problem.objective == "latency":
            if count <= MIDDLE and not problem.contiguous:
                yield ByLevel()
            yield Single()
        yield Fit()
        if problem.objective == "latency" and solver and count <= SMALL and worth_while(problem, SOLVER_SHARE * left()):
            yield Exact(time_limit=SOLVER_SHARE * left(), seed=self.seed)
        if count <= MIDDLE or problem.objective == "throughput":
            yield Search(time_limit=left(), seed=self.seed)


def _has_groups(problem: Problem, answer: Assignment) -> bool:
    """Whether the tasks of each group share a processor."""
    homes = [problem.lanes[lane] for lane in answer.lanes]
    return all(len({homes[task] for task in tasks}) == 1 for tasks in problem.members.values())
