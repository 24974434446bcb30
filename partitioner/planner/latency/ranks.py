"""Which task is the more urgent: upward ranks, by several notions of what a task and a transfer cost.

    a 2 -- b 4 -- d 1       upward rank: d 1, b 5, c 4, a 7; so a, b, c, d
        \\- c 3 -/

Source: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
TPDS 13(3), 2002; the table of optimistic costs is that of Arabnejad and Barbosa, "List scheduling algorithm for heterogeneous
systems by an optimistic cost table", IEEE TPDS 25(3), 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.problem import Problem

Notion = Literal["mean", "least", "most"]
"""What a task costs that may run on several processors."""

RankName = Literal["mean", "least", "most", "fan-out", "oct", "path", "first"]
"""Upward rank by a notion of cost; that with more readers first among equals; the sum of `optimistic` costs; the longest path
through a task; its earliest start."""

LARGEST_TABLE = 4_000_000
"""Pairs of an edge and two processors that `optimistic` looks at; more take seconds."""


def task_seconds(problem: Problem, notion: Notion) -> list[float]:
    """Seconds of each task over the processors that can run it."""
    if not problem.tasks:
        return []
    lanes: dict[int, int] = {}
    table: dict[int, Sequence[float]] = {}
    for number, seconds in enumerate(problem.seconds):
        lanes[id(seconds)] = lanes.get(id(seconds), 0) + problem.processors[number].lanes
        table[id(seconds)] = seconds
    rows = np.array(list(table.values()), dtype=float)
    able = np.isfinite(rows)
    if notion != "mean":
        found = np.where(able, rows, inf).min(axis=0) if notion == "least" else np.where(able, rows, 0.0).max(axis=0)
    else:
        weight = np.array(list(lanes.values()), dtype=float)[:, None] * able
        found = (np.where(able, rows, 0.0) * weight).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-300)
    return [float(each) for each in np.where(np.isfinite(found), found, 0.0)]


def move_seconds(problem: Problem, notion: Notion) -> Callable[[int], float]:
    """Seconds from the end of a task to the start of one that waits for it, by what passes: a value, or a negative number."""
    if notion == "least":
        return lambda value: 0.0
    count, lanes = len(problem.processors), len(problem.lanes)
    handoff = sum(each.handoff * each.lanes for each in problem.processors) / max(1, lanes) * (1 - 1 / max(1, lanes))
    used = [problem.channels[channel] for route in problem.routes.values() for channel in route]
    pairs = max(1, count * count)
    if notion == "most":
        pairs = max(1, len(problem.routes))
    latency = sum(each.latency for each in used) / pairs
    per_byte = sum(1.0 / each.bandwidth for each in used) / pairs
    values = problem.values
    return lambda value: handoff + (latency + per_byte * values[value][1] if value >= 0 else 0.0)


def upward(problem: Problem, notion: Notion = "mean") -> list[float]:
    """The longest way from the start of each task to the end of all.

    >>> from partitioner.ir.problem import ORDER, Kind, Problem, Processor
    >>> seconds = Kind("cpu", {1: [2.0, 4.0, 3.0, 1.0]})
    >>> edges = [(0, 1, ORDER), (0, 2, ORDER), (1, 3, ORDER), (2, 3, ORDER)]
    >>> upward(Problem("diamond", ("a", "b", "c", "d"), (seconds,), (Processor("cpu", 0),), edges))
    [7.0, 5.0, 4.0, 1.0]
    """
    seconds, move, before = task_seconds(problem, notion), move_seconds(problem, notion), problem.before
    rank = [0.0] * len(seconds)
    for task in range(len(rank) - 1, -1, -1):
        rank[task] = own = rank[task] + seconds[task]
        for source, value in before[task]:
            far = own + move(value)
            if far > rank[source]:
                rank[source] = far
    return rank


def downward(problem: Problem, notion: Notion = "mean") -> list[float]:
    """The longest way from the start of all to the start of each task."""
    seconds, move = task_seconds(problem, notion), move_seconds(problem, notion)
    rank: list[float] = []
    for sources in problem.before:
        rank.append(max((rank[source] + seconds[source] + move(value) for source, value in sources), default=0.0))
    return rank


def transit(problem: Problem) -> Callable[[int], NDArray[np.float64]]:
    """Seconds from the end of a task on one processor to the start of a reader on another, by what passes; never too many."""
    count = len(problem.processors)
    fixed, per_byte = np.zeros((count, count)), np.zeros((count, count))
    for (here, there), route in problem.routes.items():
        fixed[here, there] = sum(problem.channels[each].latency for each in route)
        per_byte[here, there] = sum(1.0 / problem.channels[each].bandwidth for each in route)
    handoff = np.array([[each.handoff for each in problem.processors]] * count).reshape(count, count)
    np.fill_diagonal(handoff, 0.0)
    plain, sizes = handoff, problem.values
    return lambda value: plain + fixed + per_byte * sizes[value][1] if value >= 0 else plain


def optimistic(problem: Problem) -> list[list[float]] | None:
    """For each task and processor the longest way from its end to the end of all, if every other task is where it suits best.

    Returns:
        The table, by task; ``None`` where it would take long.
    """
    if len(problem.edges) * len(problem.processors) ** 2 > LARGEST_TABLE:
        return None
    seconds = np.array([list(row) for row in problem.seconds], dtype=float).reshape(len(problem.processors), len(problem.tasks))
    move, table = transit(problem), np.zeros((len(problem.tasks), len(problem.processors)))
    for task in range(len(problem.tasks) - 1, -1, -1):
        own = table[task] + seconds[:, task]
        for source, value in problem.before[task]:
            np.maximum(table[source], (move(value) + own).min(axis=1), out=table[source])
    return [[float(each) for each in row] for row in table]


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


def ordered(problem: Problem, name: RankName) -> list[int] | None:
    """All tasks by a rank, so that every edge is respected; ``None`` where the rank would take long, or says nothing."""
    match name:
        case "mean" | "least" | "most":
            return by_rank(upward(problem, name))
        case "fan-out":
            ways = [len(set(after)) for after in problem.after]
            rank = zip(upward(problem), ways, strict=True)
            return by_urgency(problem, [each * (1 + 1e-9 * way) + 1e-12 * way for each, way in rank])
        case "oct":
            table = optimistic(problem) if len(problem.processors) > 1 else None
            return by_urgency(problem, [sum(each for each in row if each < inf) for row in table]) if table else None
        case "path":
            ends = zip(upward(problem), downward(problem), strict=True)
            return by_urgency(problem, [up + 0.5 * (up + before) for up, before in ends])
        case "first":
            return by_urgency(problem, [-before for before in downward(problem)])
