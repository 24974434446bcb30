"""What contiguity asks for along a path: each processor has one interval of it, with all that lies between the ends of that.

path        a > b > c > d       two processors, of which one has a, or a and b, ... and the other one the rest
off it      b > e > c           who has b and c has e, too

Where an interval ends, its processor sends what the next task of the path reads. It is exact for chains.

Source: Bokhari, "Partitioning problems in parallel, pipelined, and distributed computing", IEEE Transactions on Computers
37(1), 1988 (a chain in intervals).
"""

from __future__ import annotations

from itertools import pairwise, product
from math import inf, isqrt, prod

import numpy as np

from partitioner.ir.problem import Problem
from partitioner.planner.prices import able_seconds
from partitioner.planner.throughput.prices import Alike
from partitioner.planner.throughput.units import Floats

MOST_POINTS, FEWEST_POINTS = 1_000, 8
"""Tasks of the path that are looked at, evenly apart: intervals of some of its tasks are intervals, too."""

MOST = 20_000_000
"""Entries of tables that are filled: ways to have used processors, for each pair of tasks."""

MOST_TASKS = 20_000
"""The largest problem for which they are."""


def path_bound(problem: Problem, classes: list[Alike]) -> float:
    """Seconds that the largest load cannot be below if no path of forward tasks leaves a processor and comes back.

    Args:
        problem: what is placed.
        classes: its processors, those that are alike together.

    Returns:
        The bound; 0 where there is no path, or too many ways to divide one.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> times, both = Kind("cpu", {1: [4.0, 3.0, 3.0, 4.0, 4.0]}), (Processor("x", 0), Processor("y", 0))
    >>> chain = Problem("chain", tuple("abcde"), (times,), both, [(task, task + 1, -1) for task in range(4)])
    >>> path_bound(chain, [Alike((0, 1), (0.0, 0.0), (0.0, 0.0), np.zeros((2, 2)))])  # half of the work is 9
    10.0
    """
    ways = prod(len(each.processors) + 1 for each in classes) * len(classes)
    most = min(MOST_POINTS, isqrt(MOST // ways) - 1)
    if most < FEWEST_POINTS or not 1 < len(problem.tasks) <= MOST_TASKS:
        return 0.0
    seconds = able_seconds(problem)
    path = _longest(problem, seconds.min(axis=0).tolist())
    path = [path[each] for each in np.unique(np.linspace(0, len(path) - 1, min(most, len(path))).astype(int))] if path else []
    hull, passed = _between(problem, path), _passed(problem, path)
    loads = [_loads(problem, each, seconds[each.processors[0]], hull, passed) for each in classes]
    found = _divided(loads, [len(each.processors) for each in classes])
    return found if found < inf else 0.0


def _longest(problem: Problem, least: list[float]) -> list[int]:
    """The longest path of forward tasks, each where it takes the least."""
    far, came, backward = list(least), [-1] * len(least), problem.backward
    for task, sources in enumerate(problem.before):
        for source, _ in sources:
            if task not in backward and source not in backward and far[source] + least[task] > far[task]:
                far[task], came[task] = far[source] + least[task], source
    forward = [task for task in range(len(least)) if task not in backward and far[task] < inf]
    path = [max(forward, key=far.__getitem__)] if forward else []
    while path and came[path[-1]] >= 0:
        path.append(came[path[-1]])
    return path[::-1]


def _between(problem: Problem, path: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Tasks between two of a path, the last one of it that leads to each, and the first one that each leads to."""
    place, backward, count = {task: number for number, task in enumerate(path)}, problem.backward, len(problem.tasks)
    last = [place.get(task, -1) for task in range(count)]
    first = [place.get(task, len(path)) for task in range(count)]
    pairs = [(source, task) for task in range(count) for source, _ in problem.before[task]]
    forward = [pair for pair in pairs if backward.isdisjoint(pair)]
    for source, task in forward:
        last[task] = max(last[task], last[source])
    for source, task in reversed(forward):
        first[source] = min(first[source], first[task])
    tasks = [task for task in range(count) if last[task] >= 0 and first[task] < len(path)]
    return tasks, [last[task] for task in tasks], [first[task] for task in tasks]


def _passed(problem: Problem, path: list[int]) -> list[list[float]]:
    """Bytes of each value that a task of a path has from the one before it, if that is among its sources."""
    found: list[list[float]] = [[]]
    for before, task in pairwise(path):
        values = {value for source, value in problem.before[task] if source == before and value >= 0}
        found.append([problem.values[value][1] for value in values])
    return found


def _loads(
    problem: Problem, alike: Alike, seconds: Floats, hull: tuple[list[int], list[int], list[int]], passed: list[list[float]]
) -> Floats:
    """What one of some processors has to do with the path from one of its tasks up to before another one, by their places."""
    (tasks, last, first), count, one = hull, len(passed), alike.processors[0]
    able = np.isfinite(seconds[tasks])

    def summed(each: Floats) -> Floats:
        grid = np.zeros((count, count))
        np.add.at(grid, (last, first), each)
        total: Floats = grid[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        return total

    compute = summed(np.where(able, seconds[tasks], 0.0)) / problem.processors[one].lanes
    compute[summed(~able) > 0.5] = inf
    if problem.memory:
        compute[summed(np.array(problem.memory, dtype=float)[tasks]) > problem.caps[one] * (1 + 1e-9)] = inf
    compute[~np.tri(count, dtype=bool).T] = inf
    (send, receive), none = alike.least.tolist(), [0.0]
    sends = np.array([sum(send[0] + send[1] * size for size in sizes) for sizes in passed][1:] + none)
    receives = np.array([sum(receive[0] + receive[1] * size for size in sizes) for sizes in passed])
    found = np.full((count + 1, count + 1), inf)
    found[:-1, 1:] = (
        np.maximum(compute, np.maximum(sends, receives[:, None])) if problem.overlap else compute + sends + receives[:, None]
    )
    np.fill_diagonal(found, 0.0)
    return found


def _divided(loads: list[Floats], many: list[int]) -> float:
    """The smallest largest load of a path in intervals, at most one for each of so many processors of each class."""
    known: dict[tuple[int, ...], Floats] = {}
    for used in product(*(range(each + 1) for each in many)):
        best = np.full(len(loads[0]), inf)
        best[0] = 0.0
        for kind, each in enumerate(used):
            if each:
                before = known[(*used[:kind], each - 1, *used[kind + 1 :])]
                best = np.minimum(best, np.maximum(before[:, None], loads[kind]).min(axis=0))
        known[used] = best
    return float(known[tuple(many)][-1])
