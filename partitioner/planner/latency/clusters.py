"""Tasks in clusters first: those that would wait too long for each other's values apart share a processor, and move as one.

    a =6=> b -1-> c         a and b are one cluster: apart, b would begin 6 s later
     \\-1-> d =6=> e         d and e another one; two processors have one each, and no move of one task leads there

Placed one by one, tasks stay where the first of them is if values travel for longer than a task takes, and most so where
processors stand still meanwhile. So clusters are placed and moved as groups are, and search begins at their schedules, too.

Sources: Yang and Gerasoulis, "DSC: scheduling parallel tasks on an unbounded number of processors", IEEE TPDS 5(9), 1994
(dominant sequences); Sarkar, "Partitioning and Scheduling Parallel Programs for Multiprocessors", MIT Press, 1989 (edges made
internal, the dearest first).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.planner.latency.homes import Homes
from partitioner.planner.latency.improve import improved
from partitioner.planner.latency.inseparable import joined
from partitioner.planner.latency.ranks import by_urgency, mean_seconds, move_seconds, upward
from partitioner.planner.latency.tries import Found, several

TRIES, MOVED_IN_ALL = 4, 15_000
"""Schedules of clusters by rank, and tasks that moves of clusters time together."""

ROOM = 0.5
"""Part of the smallest memory that a cluster may have, where memory is scarce."""


def clustered(problem: Problem, least: float, until: float = inf) -> list[Found]:
    """A schedule for each way to make clusters; none where clusters leave no choice, or no room.

    Args:
        problem: in which values travel, contiguous or not.
        least: seconds that no schedule beats: nothing is left to do there.
        until: moment, on `time.perf_counter`, at which to stop.
    """
    found = []
    for name, cluster in (("dominant", _dominant(problem)), ("dearest", _dearest(problem))):
        whole = joined(problem, cluster, ROOM * min(problem.caps) if problem.crowded else inf)
        with suppress(PlacementError):
            known = several(whole, Homes(whole), TRIES, until)[:2]
            best = improved(whole, known, least, until, 0, most=MOVED_IN_ALL // len(problem.tasks))
            found.append(replace(best, rank=f"in {name} clusters, {best.rank}"))
    return found


def _dominant(problem: Problem) -> list[int]:
    """A cluster for each task: the one of those before it where it begins first, of its own if that is not earlier there.

    The task on the longest path so far is next, with passages between clusters as long as they are.
    """
    own, move, before = mean_seconds(problem), move_seconds(problem), problem.before
    rank, cluster = upward(problem), list(range(len(own)))
    end, free, left = [0.0] * len(own), [0.0] * len(own), [len(each) for each in before]
    ready = [(-rank[task], task) for task, count in enumerate(left) if not count]
    heapify(ready)
    while ready:
        task = heappop(ready)[1]
        come = [(end[source] + move(value), end[source], cluster[source]) for source, value in before[task]]
        best = max((late for late, _, _ in come), default=0.0)
        for each in dict.fromkeys(there for *_, there in sorted(come, reverse=True)):
            begin = max(free[each], *(soon if there == each else late for late, soon, there in come))
            if begin < best or (begin == best and cluster[task] == task):
                best, cluster[task] = begin, each
        end[task] = free[cluster[task]] = best + own[task]
        for reader in problem.after[task]:
            left[reader] -= 1
            if not left[reader]:
                late = max(end[source] + move(value) for source, value in before[reader])
                heappush(ready, (-late - rank[reader], reader))
    return cluster


def _dearest(problem: Problem) -> list[int]:
    """A cluster for each task: ends of edges are joined, the dearest first, where that makes no schedule of clusters longer."""
    own, move = mean_seconds(problem), move_seconds(problem)
    order, cluster = by_urgency(problem, upward(problem)), list(range(len(own)))
    before = [[(source, move(value)) for source, value in each] for each in problem.before]
    least = _span(own, before, order, cluster)
    edges = ((seconds, source, task) for task, each in enumerate(before) for source, seconds in each)
    for _, source, task in sorted(edges, reverse=True):
        one, other = cluster[source], cluster[task]
        if one != other:
            tried = [one if each == other else each for each in cluster]
            span = _span(own, before, order, tried)
            if span <= least:
                least, cluster = span, tried
    return cluster


def _span(
    own: Sequence[float], before: Sequence[Sequence[tuple[int, float]]], order: Sequence[int], cluster: Sequence[int]
) -> float:
    """When the last task ends if each cluster has a processor, and does its tasks in order."""
    free, end = [0.0] * len(own), [0.0] * len(own)
    for task in order:
        here = cluster[task]
        ready = free[here]
        for source, seconds in before[task]:
            at = end[source] if cluster[source] == here else end[source] + seconds
            if at > ready:
                ready = at
        end[task] = free[here] = ready + own[task]
    return max(end)
