"""A policy's choice of lanes and order, with the times that the clock finds for it: how every policy ends."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.feasible import returns
from partitioner.planner.timing import Ahead, Clock, largest_load, timed


def scheduled(
    problem: Problem,
    policy: str,
    lanes: Sequence[int],
    order: Sequence[int],
    threads: Sequence[int] = (),
    *,
    bound: float = 0.0,
    reasons: Sequence[str] = (),
    note: str = "",
    ahead: Ahead | None = None,
    clock: Clock | None = None,
) -> Assignment:
    """An answer: the lane of each task, by number, and all tasks in an order that respects every edge.

    The times are those of the clock, for any objective; the cost is the objective's. ``ahead``: see `timed`. ``clock``: after
    these tasks in this order, where somebody has it.
    """
    clock = clock or timed(problem, lanes, order, threads, ahead)
    issued = sorted(order, key=clock.start.__getitem__)  # stable: tasks of no length keep their order
    turns: Sequence[int] = order
    if problem.fetched and issued != list(order):
        clock, turns = timed(problem, lanes, issued, threads), issued  # what is issued first is fetched first
    cost = cost_of(problem, [problem.lanes[lane] for lane in lanes], clock.makespan)
    assert bound <= cost * (1 + 1e-6) + 1e-12, f"a bound of {bound} above an answer of {cost}"
    least = min(bound, cost)
    times, way = (clock.start, clock.end), (turns, ahead or {})
    return Assignment(
        policy, problem.tasks, lanes, issued, threads, *times, cost, least, reasons, note, problem.objective, *way
    )


def cost_of(problem: Problem, homes: Sequence[int], makespan: float) -> float:
    """What the objective makes small: the makespan, the largest load of a processor, or the most bytes that one holds."""
    if problem.objective == "latency":
        return makespan
    return largest_load(problem, homes) if problem.objective == "throughput" else max(held(problem, homes), default=0.0)


def held(problem: Problem, homes: Sequence[int]) -> list[float]:
    """The bytes that each processor holds, when each task runs on the one given."""
    found = [0.0] * len(problem.processors)
    for need, home in zip(problem.memory, homes, strict=False):
        found[home] += need
    return found


def keeps(problem: Problem, homes: Sequence[int]) -> bool:
    """Whether the processors of tasks keep memory caps and contiguity; groups and pins are not looked at."""
    if any(full > cap for full, cap in zip(held(problem, homes), problem.caps, strict=True)):
        return False
    return not problem.contiguous or next(returns(problem, homes), None) is None


def placed(
    problem: Problem, policy: str, processors: Sequence[int], *, bound: float = 0.0, reasons: Sequence[str] = (), note: str = ""
) -> Assignment:
    """An answer that says only on which processor each task runs, each on its first lane, in the order of their numbers."""
    lanes = [problem.first_lane[processor] for processor in processors]
    return scheduled(problem, policy, lanes, range(len(problem.tasks)), bound=bound, reasons=reasons, note=note)
