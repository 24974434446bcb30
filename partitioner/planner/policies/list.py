"""List scheduling: the most urgent task first, to the lane on which it ends first, into a gap if there is one.

    upward ranks    a 7   b 5   c 4   d 1          the longest way from a task's start to the end of all

    lane 0   | a | b     | d |
    lane 1       | c   |

With more than one try, several notions of urgency compete, schedules are pulled together from both ends, and the best is
improved by as many local moves as milliseconds allow. Large graphs get fewer tries: one for 10^4 tasks and more. Both are
counted and not timed, so that an answer is the same on every machine.

Sources: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
TPDS 13(3), 2002 (upward rank, insertion); Li and Willis, EJOR 56, 1992 (forwards and backwards in turns).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from time import monotonic, perf_counter

from partitioner.errors import PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import placed, scheduled
from partitioner.planner.bounded import least
from partitioner.planner.latency.bounds import makespan_bound
from partitioner.planner.latency.homes import Homes, closed
from partitioner.planner.latency.improve import soon_improved
from partitioner.planner.latency.inseparable import inseparable
from partitioner.planner.latency.starts import starts
from partitioner.planner.latency.strips import in_strips
from partitioner.planner.latency.tries import lumpy, several, tries_for, uneven
from partitioner.planner.throughput.solve import evenest, soon_balanced

CLOSE = 1e-9
"""A gap that is none."""

FAR = 0.01
"""A gap from which on there is more than one schedule, where memory is scarce and nothing travels: the bound is near there."""

TOGETHER = {"latency": (1.0,), "throughput": (1.0, 0.5), "memory": ()}
"""Parts of the bound: what would take longer is not sent, in another answer for each."""


@dataclass(frozen=True)
class List:
    """List scheduling by upward rank.

    Args:
        tries: schedules to make, at most; the best is kept and improved. 1: by upward rank, as it is.
        time_limit: seconds after which no more is tried; infinite: the answer is the same on every machine.

    >>> from partitioner.ir.problem import ORDER, Kind, Problem, Processor
    >>> seconds = Kind("cpu", {1: [2.0, 4.0, 3.0, 1.0]})
    >>> edges = [(0, 1, ORDER), (0, 2, ORDER), (1, 3, ORDER), (2, 3, ORDER)]
    >>> answer = List()(Problem("diamond", ("a", "b", "c", "d"), (seconds,), (Processor("cpu", 0, lanes=2),), edges))
    >>> answer.cost, answer.bound
    (7.0, 7.0)
    """

    tries: int = 16
    time_limit: float = inf

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: no placement that keeps pins, groups, memory caps and contiguity was found.
        """
        ruled, until = closed(problem), monotonic() + self.time_limit
        best = self._tried(ruled, until)
        if (tight := inseparable(ruled, best.cost)) is not ruled:
            best = replace(best, bound=max(best.bound, min(best.cost, least(tight))))
        for part in TOGETHER[ruled.objective] if best.cost > best.bound * (1 + CLOSE) else ():
            whole = inseparable(ruled, part * (1 + CLOSE) * best.bound)
            if whole is not ruled and monotonic() < until:
                with suppress(PlacementError):
                    best = min(best, replace(self._tried(whole, until), bound=best.bound), key=lambda each: each.cost)
        return best

    def _tried(self, ruled: Problem, until: float) -> Assignment:
        """The best of some schedules or placements."""
        tries = tries_for(ruled, self.tries)
        if ruled.objective == "throughput":
            even, bound = evenest(ruled, Homes(ruled), self.tries, ruled.contiguous or ruled.travels, until)
            if self.tries > 1:
                even, bound = soon_balanced(ruled, even, bound, until=until)
            return placed(ruled, "list", even, bound=bound)
        bound = makespan_bound(ruled)
        late = perf_counter() + until - monotonic()
        shares = (ruled.contiguous and uneven(ruled)) or (ruled.group and lumpy(ruled))
        one = tries == 1 and (self.tries == 1 or not shares)
        known = [*several(ruled, Homes(ruled), 1), *in_strips(ruled, 1, bound, late)] if one else []
        known.sort(key=lambda each: each.seconds)
        scarce = self.tries > 1 and ruled.crowded and not ruled.travels
        if not known or (scarce and known[0].seconds > bound * (1 + FAR)):
            known = starts(ruled, tries, bound, late, counted=True)
        found = soon_improved(ruled, known, bound, late) if self.tries > 1 else known[0]
        bound = min(bound, found.seconds)
        note = f"by upward rank: {found.rank}"
        lanes, order, ahead = found.lanes, found.order, found.ahead
        return scheduled(ruled, "list", lanes, order, bound=bound, note=note, ahead=ahead, clock=found.clock)
