"""List scheduling: the most urgent task first, to the lane on which it ends first, into a gap if there is one.

    upward ranks    a 7   b 5   c 4   d 1          the longest way from a task's start to the end of all

    lane 0   | a | b     | d |
    lane 1       | c   |

With more than one try, several notions of urgency compete, schedules are pulled together from both ends, and the best is
improved by as many local moves as milliseconds allow. Large graphs get fewer tries: one for 10^4 tasks and more. Both are
counted and not timed, so that an answer is the same on every machine.

Sources: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
TPDS 13(3), 2002 (upward rank, insertion); Arabnejad and Barbosa, IEEE TPDS 25(3), 2014 (optimistic costs); Li and Willis, EJOR
56, 1992 (forwards and backwards in turns).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from partitioner.errors import PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import cost_of, placed, scheduled
from partitioner.planner.latency.bounds import makespan_bound
from partitioner.planner.latency.homes import Homes, closed
from partitioner.planner.latency.improve import soon_improved
from partitioner.planner.latency.tries import settled, several, uneven
from partitioner.planner.throughput.first import evened, sparings
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.prices import park_of
from partitioner.planner.throughput.solve import soon_balanced, stages_in_a_line

TASKS_IN_ALL = 1500
"""Tasks that the tries for one problem place together, but for the first try."""


@dataclass(frozen=True)
class List:
    """List scheduling by upward rank.

    Args:
        tries: schedules to make, at most; the best is kept and improved. 1: by upward rank, as it is.

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
            even = _evenest(ruled, homes, self.tries)
            return placed(problem, "list", soon_balanced(ruled, even) if self.tries > 1 else even)
        bound, tries = makespan_bound(ruled), tries_for(problem, self.tries)
        known = several(ruled, homes, tries)
        if tries > 1 and known[0].seconds > bound * (1 + 1e-9) and uneven(ruled):
            with suppress(PlacementError):
                load = replace(ruled, objective="throughput")
                known += settled(ruled, soon_balanced(load, _evenest(load, homes, tries)), tries)[:2]
                known.sort(key=lambda each: each.seconds)
        found = soon_improved(ruled, known, bound) if self.tries > 1 else known[0]
        bound = min(bound, found.seconds)
        note = f"by upward rank: {found.rank}"
        return scheduled(problem, "list", found.lanes, found.order, bound=bound, note=note, clock=found.clock)


def tries_for(problem: Problem, most: int) -> int:
    """How many schedules a problem of its size gets, of ``most``."""
    return max(1, min(most, TASKS_IN_ALL // max(1, len(problem.tasks))))


def _evenest(problem: Problem, homes: Homes, tries: int) -> list[int]:
    """Of several placements, the one whose largest load is smallest; the objective is ``throughput``.

    Raises:
        PlacementError: none was found.
    """
    count, found, reason = tries_for(problem, tries), list[tuple[float, list[int]]](), PlacementError("nothing was tried")
    if problem.contiguous and tries > 1:
        with suppress(PlacementError):
            line, _ = stages_in_a_line(problem, 1)
            found.append((cost_of(problem, line, 0.0), line))
    park = park_of(units_of(problem, contiguous=False))
    for each in sparings(park)[:count] if count > 1 or not found else ():
        try:
            found.append(homes.run(partial(evened, park, sparing=each)))
        except PlacementError as error:
            reason = error
    if not found:
        raise reason
    return min(found)[1]
