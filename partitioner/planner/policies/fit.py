"""Memory first: the fewest processors that hold a model, cut where the least passes over, each with as much headroom as can be.

    groups in the order of their first task   a  b | c  d  e | f        segments, each within its processor's memory
    bytes that pass over each cut             12 5   3 ...

Groups are laid out in topological order and cut into segments (`planner/throughput/segments.py`). Where no order of processors
takes such segments, for example because of pins, groups are packed one by one, the largest first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import monotonic

from partitioner.errors import PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.ir.units import format_size
from partitioner.planner.assigned import held, placed
from partitioner.planner.bounded import least
from partitioner.planner.feasible import called, remedy, what_is_held
from partitioner.planner.throughput.fitting import certificate
from partitioner.planner.throughput.segments import fewest_segments, segments

SECONDS, CLOSE = 5.0, 1e-3
"""Time for the way to the smallest peak, and the part of it that is not worth another step."""


@dataclass(frozen=True)
class Fit:
    """As few processors as memory allows. One works at a time in latency; what a model needs that fits on none alone."""

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: the groups do not fit; says how much is missing.
        """
        if problem.objective == "memory":
            return _smallest(problem)
        home, count = fewest_segments(problem)
        if home is None:
            home = certificate(problem)
            if home is None:
                raise PlacementError(_missing(problem))
            count = len(set(home.values()))
        plural = "processor holds" if count == 1 else "processors hold"
        processors = [home[group] for group in problem.group_of]
        return placed(problem, "fit", processors, note=f"{count} {plural} it, and no fewer were found to")


def _smallest(problem: Problem) -> Assignment:
    """The smallest peak: the least memory of every processor for which there are segments, by bisection."""
    bound = least(problem)
    best = certificate(problem)
    if best is None:
        raise PlacementError(_missing(problem))
    low, high = bound, max(held(problem, [best[group] for group in problem.group_of]))
    until, tried = monotonic() + SECONDS, low
    while high > low * (1 + CLOSE) and monotonic() < until:
        capped = tuple(replace(each, memory=min(each.memory, tried)) for each in problem.processors)
        smaller = replace(problem, processors=capped)
        home = segments(smaller, range(len(capped))) or certificate(smaller)
        if home is None:
            low = tried
        else:
            best, high = home, max(held(problem, [home[group] for group in problem.group_of]))
        tried = (low + high) / 2
    return placed(problem, "fit", [best[group] for group in problem.group_of], bound=bound, note="the smallest peak found")


def _missing(problem: Problem) -> str:
    need = sum(problem.demand.values())
    room = sum(each.memory for each in problem.processors)
    largest = sorted(problem.demand, key=lambda group: -problem.demand[group])[:3]
    names = ", ".join(f"{called(problem, problem.members[each][0])} {format_size(problem.demand[each])}" for each in largest)
    return (
        f"{format_size(need)} of {what_is_held(problem)} were not brought onto {len(problem.processors)} devices with "
        f"{format_size(room)} of memory together.\nThe largest that must stay whole: {names}. "
        f"{remedy(problem)}"
    )
