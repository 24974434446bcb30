"""Which task is the more urgent: upward ranks, with what tasks and passages cost on average.

    a 2 -- b 4 -- d 1       upward rank: d 1, b 5, c 4, a 7; so a, b, c, d
        \\- c 3 -/

Source: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
TPDS 13(3), 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from partitioner.ir.problem import Problem
from partitioner.planner.prices import able_seconds, lane_counts


def mean_seconds(problem: Problem) -> list[float]:
    """Seconds of each task over the lanes that it may have."""
    seconds, lanes = able_seconds(problem), lane_counts(problem)[:, None]
    able = np.isfinite(seconds)
    found: list[float] = (
        np.where(able, seconds * lanes, 0.0).sum(axis=0) / np.maximum((able * lanes).sum(axis=0), 1.0)
    ).tolist()
    return found


def move_seconds(problem: Problem) -> Callable[[int], float]:
    """Seconds from the end of a task to the start of one that waits for it, by what passes: a value, or a negative number."""
    count, lanes = len(problem.processors), len(problem.lanes)
    handoff = sum(each.handoff * each.lanes for each in problem.processors) / lanes * (1 - 1 / lanes)
    used = [problem.channels[channel] for route in problem.routes.values() for channel in route]
    latency = sum(each.latency for each in used) / (count * count)
    per_byte = sum(1.0 / each.bandwidth for each in used) / (count * count)
    values = problem.values
    return lambda value: handoff + (latency + per_byte * values[value][1] if value >= 0 else 0.0)


def upward(problem: Problem) -> list[float]:
    """The longest way from the start of each task to the end of all.

    >>> from partitioner.ir.problem import ORDER, Kind, Problem, Processor
    >>> seconds = Kind("cpu", {1: [2.0, 4.0, 3.0, 1.0]})
    >>> edges = [(0, 1, ORDER), (0, 2, ORDER), (1, 3, ORDER), (2, 3, ORDER)]
    >>> upward(Problem("diamond", ("a", "b", "c", "d"), (seconds,), (Processor("cpu", 0),), edges))
    [7.0, 5.0, 4.0, 1.0]
    """
    seconds, move, before = mean_seconds(problem), move_seconds(problem), problem.before
    rank = [0.0] * len(seconds)
    for task in range(len(rank) - 1, -1, -1):
        rank[task] = own = rank[task] + seconds[task]
        for source, value in before[task]:
            far = own + move(value)
            if far > rank[source]:
                rank[source] = far
    return rank


def transit(problem: Problem, turned: bool = False) -> Callable[[int, list[float]], list[float]]:
    """When what passes is on each processor, given when its maker has ended on each; never too late, for nothing is in its way.

    Args:
        problem: the processors and channels.
        turned: whether all goes backwards: given how long it is from a reader's start on each processor to the end of all.
    """
    count, sizes = len(problem.processors), problem.values
    fixed, per_byte = np.zeros((count, count)), np.zeros((count, count))
    for (here, there), route in problem.routes.items():
        fixed[there, here] = sum(problem.channels[each].latency for each in route)
        per_byte[there, here] = sum(1.0 / problem.channels[each].bandwidth for each in route)
    plain = np.array([[each.handoff] * count for each in problem.processors]).reshape(count, count)
    np.fill_diagonal(plain, 0.0)
    if turned:
        plain, fixed, per_byte = plain.T, fixed.T, per_byte.T
    apart = ~np.eye(count, dtype=bool)
    rows = [set(table[apart].tolist()) for table in (plain, plain + fixed, per_byte)]
    if count > 1 and all(len(row) == 1 for row in rows):  # all ways are equally long
        bare, least, slope = (row.pop() for row in rows)

        def alike(value: int, times: list[float]) -> list[float]:
            soonest = min(times) + (least + slope * sizes[value][1] if value >= 0 else bare)
            return [min(time, soonest) for time in times]

        return alike

    def any_way(value: int, times: list[float]) -> list[float]:
        way = plain + fixed + per_byte * sizes[value][1] if value >= 0 else plain
        found: list[float] = (way + times).min(axis=1).tolist()
        return found

    return any_way


def awaited(problem: Problem, homes: Sequence[int], order: Sequence[int]) -> list[float]:
    """The longest way from the start of each task to the end of all, or all that one processor does after it, if that is more.

        x   a > b > c        y has nothing to do before a has ended, and with d, e and f
        y     > d > e > f    more than the way to c is long: a comes before b

    Args:
        problem: whose tasks they are.
        homes: the processor of each task.
        order: of all tasks; what comes behind the first task of a processor that waits for one is said to wait for it, too.
    """
    table, lanes = problem.seconds, [each.lanes for each in problem.processors]
    behind, whole = [0.0] * len(homes), [0.0] * len(lanes)
    for task in reversed(order):
        home = homes[task]
        behind[task] = whole[home] = whole[home] + table[home][task] / lanes[home]
    waiting, rest = [[0.0] * len(lanes)] * len(homes), [0.0] * len(homes)
    for task in range(len(homes) - 1, -1, -1):
        most, longest = [0.0] * len(lanes), 0.0
        for reader in problem.after[task]:
            most, home = list(map(max, most, waiting[reader])), homes[reader]
            most[home], longest = max(most[home], behind[reader]), max(longest, rest[reader])
        waiting[task], rest[task] = most, table[homes[task]][task] + max(longest, *most)
    return rest


def by_rank(rank: Sequence[float]) -> list[int]:
    """The tasks by falling rank; respects every edge where a task's rank is at least that of each task that waits for it."""
    return sorted(range(len(rank)), key=rank.__getitem__, reverse=True)


def by_urgency(problem: Problem, urgency: Sequence[float]) -> list[int]:
    """Of the tasks whose predecessors are through always the most urgent: a topological order for any numbers."""
    waits = [len(sources) for sources in problem.before]
    after = problem.after
    ready = [(-urgency[task], task) for task, count in enumerate(waits) if not count]
    heapify(ready)
    order = []
    while ready:
        task = heappop(ready)[1]
        order.append(task)
        for reader in after[task]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (-urgency[reader], reader))
    return order
