"""From the start of a task to the end of all: longest ways, and work that lies behind a task on what it must share.

    a -> b, c, d of 2 each, on one processor      the longest way from a takes 2 + 2, and b, c and d alone take 6

Source: Carlier, "The one-machine sequencing problem", EJOR 11, 1982 (heads and tails, and one machine between them).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

import numpy as np

from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.latency.ranks import transit
from partitioner.planner.prices import able_seconds, prices

MOST_SHARED = 500
"""Tasks of a problem up to which is looked at what lies behind each of them."""


@dataclass(frozen=True)
class Share:
    """What tasks must share: a processor, or the time of all processors at their prices.

    Args:
        work: seconds of each task, of which no schedule does more than one in a second.
        prices: ``(lane, part of a second)`` that a second of the lane counts.
    """

    work: Sequence[float]
    prices: Sequence[tuple[int, float]]


def shares(problem: Problem) -> list[Share]:
    """All that tasks must share: each processor with what can run nowhere else, and all of them where tasks have a choice."""
    seconds, lanes = able_seconds(problem), np.array([each.lanes for each in problem.processors], dtype=float)
    only, found = np.isfinite(seconds).sum(axis=0) == 1, list[Share]()
    if not only.all():
        price = prices(seconds, lanes)
        work = (seconds * price[:, None]).min(axis=0)
        found.append(Share(work.tolist(), [(lane, float(price[home])) for lane, home in enumerate(problem.lanes)]))
    for home, row in enumerate(seconds):
        must = only & np.isfinite(row)
        if must.any():
            part = 1.0 / float(lanes[home])
            own = [(lane, part) for lane, where in enumerate(problem.lanes) if where == home]
            found.append(Share((np.where(must, row, 0.0) * part).tolist(), own))
    return found


def least(problem: Problem) -> list[float]:
    """Seconds of each task on the processor of those it may have where that is quickest."""
    ways = ((problem.able[group], task) for task, group in enumerate(problem.group_of))
    return [min(problem.seconds[each][task] for each in able) for able, task in ways]


def tails(problem: Problem, shared: Sequence[Share]) -> list[float]:
    """Seconds from the start of each task to the end of all, at least."""
    move, able, group = transit(problem), problem.able, problem.group_of
    own = least(problem)
    after: list[list[tuple[int, float]]] = [[] for _ in group]
    for task, sources in enumerate(problem.before):
        for source, value in sources:
            if value != ISSUE:
                here, there = able[group[source]], able[group[task]]
                far = float(move(value)[np.ix_(here, there)].min()) if group[source] != group[task] else 0.0
                after[source].append((task, far))
    tail, behind = [0.0] * len(group), [0] * len(group)
    for task in range(len(group) - 1, -1, -1):
        most = 0.0
        for reader, far in after[task]:
            behind[task] |= behind[reader] | 1 << reader
            most = max(most, far + tail[reader])
        if len(group) <= MOST_SHARED:
            for jobs in _jobs(task, after, behind[task], own, tail, shared):
                most = max(most, one_machine(jobs))
        tail[task] = own[task] + most
    return tail


def _jobs(
    task: int,
    after: Sequence[Sequence[tuple[int, float]]],
    behind: int,
    own: Sequence[float],
    tail: Sequence[float],
    shared: Sequence[Share],
) -> list[list[tuple[float, float, float]]]:
    """By share, ``(head, work, tail)`` of the tasks behind one, from its end."""
    heads: defaultdict[int, float] = defaultdict(float)
    heads[task] = -own[task]
    found: list[list[tuple[float, float, float]]] = [[] for _ in shared]
    for other in range(task, behind.bit_length()):
        if other == task or behind >> other & 1:
            end = heads[other] + own[other]
            for reader, far in after[other]:
                if end + far > heads[reader]:
                    heads[reader] = end + far
            if other != task:
                for jobs, share in zip(found, shared, strict=True):
                    if share.work[other]:
                        jobs.append((heads[other], share.work[other], tail[other] - own[other]))
    return [jobs for jobs in found if len(jobs) > 1]


def one_machine(jobs: Sequence[tuple[float, float, float]]) -> float:
    """When the last of ``(head, work, tail)`` is through if one machine may interrupt them (Jackson's rule): never too late.

    >>> one_machine([(0.0, 2.0, 0.0), (0.0, 2.0, 5.0), (1.0, 1.0, 9.0)])
    11.0
    """
    jobs = sorted(jobs)
    waiting: list[tuple[float, float]] = []
    now, number, last = 0.0, 0, 0.0
    while number < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[number][0])
        while number < len(jobs) and jobs[number][0] <= now:
            heappush(waiting, (-jobs[number][2], jobs[number][1]))
            number += 1
        tail, work = heappop(waiting)
        until = jobs[number][0] if number < len(jobs) else inf
        if now + work > until:
            heappush(waiting, (tail, work - (until - now)))
            now = until
        else:
            now += work
            last = max(last, now - tail)
    return last
