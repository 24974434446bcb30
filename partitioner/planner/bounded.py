"""What no answer to a problem can beat, whatever its objective is: every answer that is used has such a bound.

    latency       the longest path, the work, links, issuing    `planner/latency/bounds.py`; with threads `planner/widen.py`
    throughput    the work and what must be moved               `planner/throughput/bound.py`
    memory        all that is held, shared out; the largest group

A policy's own bound is kept where it has one.
"""

from __future__ import annotations

from dataclasses import replace

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.latency.bounds import makespan_bound
from partitioner.planner.throughput.bound import load_bound
from partitioner.planner.widen import shares_cores, thread_bound

ROUNDING = 1e-6
"""Part of the cost by which the bound may exceed it because both are rounded sums."""


def bounded(problem: Problem, answer: Assignment) -> Assignment:
    """``answer`` with the problem's objective and, where the policy gave none, with a bound."""
    if answer.bound or not answer.cost:
        return replace(answer, objective=problem.objective)
    bound = least(problem)
    assert bound <= answer.cost * (1 + ROUNDING), f"a bound of {bound} above an answer of {answer.cost}"
    return replace(answer, objective=problem.objective, bound=min(bound, answer.cost))


def least(problem: Problem) -> float:
    """What no answer can beat: seconds, or bytes of one processor where memory is the objective.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> bag = Problem("bag", ("a", "b"), (Kind("cpu", {1: [3.0, 1.0]}),), (Processor("x", 0), Processor("y", 0)), [])
    >>> least(bag)
    3.0
    """
    if problem.objective == "throughput":
        return load_bound(problem)
    if problem.objective == "memory":
        demand = problem.demand.values()
        return max(max(demand, default=0.0), sum(demand) / len(problem.processors))
    return thread_bound(problem) if shares_cores(problem) else makespan_bound(problem)
