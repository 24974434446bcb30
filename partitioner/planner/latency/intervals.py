"""Seconds that no contiguous schedule can beat: each processor has one interval of a path, with all between its ends.

path        a > b > c > d       in two intervals, a or a and b or a, b and c on one processor, one passage, the rest
off it      b > e > c           who has b and c has e, too, and c begins when all of them are through

Source: as of `planner/throughput/paths.py`, where intervals share out loads; here their times add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

import numpy as np

from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.latency.together import Classes, classes_of
from partitioner.planner.prices import Table, able_seconds
from partitioner.planner.throughput.paths import Spots, divided, interval_loads, longest

LARGEST = 3000
"""Tasks up to which a path is divided: some ten milliseconds. Of more, the work is mostly what there is to say."""


def interval_bound(problem: Problem) -> float:
    """The least time of the longest path in intervals, of which each processor has one at most.

    Args:
        problem: its parts are contiguous.

    Returns:
        The bound; 0 where there is no path, or too long a one, or where an edge orders only what the host issues.

    >>> from partitioner.ir.problem import ORDER, Kind, Problem, Processor
    >>> edges = [(0, task, ORDER) for task in (1, 2, 3)] + [(task, 4, ORDER) for task in (1, 2, 3)]
    >>> seconds, both = (Kind("cpu", {1: [1.0, 2.0, 2.0, 2.0, 1.0]}),), (Processor("x", 0), Processor("y", 0))
    >>> round(interval_bound(Problem("fork", tuple("abcde"), seconds, both, edges, contiguous=True)), 6)  # a is apart from e
    4.0
    """
    if len(problem.tasks) > LARGEST or any(value == ISSUE for _, _, value in problem.edges):
        return 0.0
    classes, seconds = classes_of(problem), able_seconds(problem)
    path = longest(problem, [len(each) for each in classes.processors])
    if not path:
        return 0.0
    spots, cuts = Spots(problem, path), _cuts(problem, classes, path)
    times = [interval_loads(spots, each[0], seconds[each[0]]) + cuts[:, None] for each in classes.processors]
    for each in times:
        np.fill_diagonal(each, 0.0)
    found = divided(times, [len(each) for each in classes.processors], np.add)
    return found * (1 - 1e-12) if found < inf else 0.0


def _cuts(problem: Problem, classes: Classes, path: Sequence[int]) -> Table:
    """Seconds that pass before each task of a path and its end, at least, if the task before it is on another processor."""
    found, nothing = np.zeros(len(path) + 1), np.zeros(len(classes.processors))
    for place, (one, other) in enumerate(pairwise(path), start=1):
        if problem.group_of[one] == problem.group_of[other]:
            found[place] = inf
        for value in [value for source, value in problem.before[other] if source == one]:
            way = classes.elsewhere(nothing, problem.values[value][1] if value >= 0 else None)
            found[place] = max(found[place], float(way.min()))
    return found
