"""What contiguity asks for along a path: each processor has one interval of it, with all that lies between the ends of that.

path        a > b > c > d       two processors, of which one has a, or a and b, ... and the other one the rest
off it      b > e > c           who has b and c has e, too

What is made there and read behind the interval is sent, for no such reader is on its processor; and likewise what is read there
and made before: that is load where nothing overlaps. It is exact for chains.

Source: Bokhari, "Partitioning problems in parallel, pipelined, and distributed computing", IEEE Transactions on Computers
37(1), 1988 (a chain in intervals).
"""

from __future__ import annotations

from functools import cached_property
from itertools import product
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
    path, seconds = longest(problem, [len(each.processors) for each in classes]), able_seconds(problem)
    if not path:
        return 0.0
    spots = Spots(problem, path)
    loads = [interval_loads(spots, each.processors[0], seconds[each.processors[0]]) for each in classes]
    for own, each in zip(loads, classes, strict=True) if not problem.overlap else ():
        own[:-1] += _passing(spots, each)
        np.fill_diagonal(own, 0.0)
    found = divided(loads, [len(each.processors) for each in classes])
    return found if found < inf else 0.0


def longest(problem: Problem, many: list[int]) -> list[int]:
    """The longest path of forward tasks, each where it takes the least; some of its tasks where that is too many.

    Args:
        problem: what is placed.
        many: processors of each class; with too many ways to divide a path among them there is none.
    """
    ways = prod(each + 1 for each in many) * len(many)
    most = min(MOST_POINTS, isqrt(MOST // ways) - 1)
    if most < FEWEST_POINTS or not 1 < len(problem.tasks) <= MOST_TASKS:
        return []
    path = _longest(problem, able_seconds(problem).min(axis=0).tolist())
    return [path[each] for each in np.unique(np.linspace(0, len(path) - 1, min(most, len(path))).astype(int))] if path else []


def _longest(problem: Problem, least: list[float]) -> list[int]:
    """Likewise, all of it."""
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


class Spots:
    """Where tasks lie along a path.

    Attributes:
        last: for each task the last one of the path that leads to it, or is it; -1 where none does.
        first: likewise the first one that it leads to; the length of the path where it leads to none.
        within: the tasks that lie between two of the path.
    """

    def __init__(self, problem: Problem, path: list[int]) -> None:
        self.problem, self.count = problem, len(path)
        place, backward, count = {task: number for number, task in enumerate(path)}, problem.backward, len(problem.tasks)
        last = [place.get(task, -1) for task in range(count)]
        first = [place.get(task, self.count) for task in range(count)]
        pairs = [(source, task) for task in range(count) for source, _ in problem.before[task]]
        forward = [pair for pair in pairs if backward.isdisjoint(pair)]
        for source, task in forward:
            last[task] = max(last[task], last[source])
        for source, task in reversed(forward):
            first[source] = min(first[source], first[task])
        self.last, self.first = np.array(last), np.array(first)
        self.within = np.flatnonzero((self.last >= 0) & (self.first < self.count))

    @cached_property
    def sent(self) -> Floats:
        """For each value made within and read behind: bytes, the maker's spots, and the last one that leads to a reader."""
        found = []
        for (maker, size), readers in zip(self.problem.values, self.problem.readers, strict=True):
            behind = max((int(self.last[each]) for each in readers), default=-1)
            if self.last[maker] >= 0 and behind > self.first[maker]:
                found.append((size, self.last[maker], self.first[maker], behind))
        return np.array(found, dtype=float).reshape(-1, 4)

    @cached_property
    def taken(self) -> Floats:
        """For each value read within and made before: bytes, a reader's spots, and the first one that the maker leads to."""
        found = []
        for (maker, size), readers in zip(self.problem.values, self.problem.readers, strict=True):
            ways = [(self.first[each], -self.last[each]) for each in readers if self.last[each] > self.first[maker]]
            if ways and (nearest := min(ways))[0] < self.count:
                found.append((size, -nearest[1], nearest[0], self.first[maker]))
        return np.array(found, dtype=float).reshape(-1, 4)

    def summed(self, *corners: tuple[Floats, Floats, Floats]) -> Floats:
        """Of what is at some places of the path from one and up to another: the sums, for all intervals, ends not included."""
        grid = np.zeros((self.count, self.count + 2))
        for rows, columns, each in corners:
            np.add.at(grid, (rows.astype(int), columns.astype(int) + 1), each)
        total: Floats = grid[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        return total[:, :-1]


def interval_loads(spots: Spots, one: int, seconds: Floats) -> Floats:
    """What a processor has to compute that has the path from one of its tasks up to before another one, by their places."""
    problem, count, tasks = spots.problem, spots.count, spots.within
    able, ends = np.isfinite(seconds[tasks]), (spots.last[tasks], spots.first[tasks])
    compute = spots.summed((*ends, np.where(able, seconds[tasks], 0.0))) / problem.processors[one].lanes
    compute[spots.summed((*ends, 1.0 - able)) > 0.5] = inf
    if problem.memory:
        held = spots.summed((*ends, np.array(problem.memory, dtype=float)[tasks]))
        compute[held > problem.caps[one] * (1 + 1e-9)] = inf
    found = np.full((count + 1, count + 1), inf)
    found[:-1] = compute
    found[np.tri(count + 1, dtype=bool)] = inf
    np.fill_diagonal(found, 0.0)
    return found


def _passing(spots: Spots, alike: Alike) -> Floats:
    """What that one sends and receives, at least."""
    (send, receive), (size, row, column, until), (bytes_, there, up_to, after) = alike.least, spots.sent.T, spots.taken.T
    sends, takes, inner = send[0] + send[1] * size, receive[0] + receive[1] * bytes_, after >= 0
    return spots.summed((row, column, sends), (row, until, -sends)) + spots.summed(
        (there, up_to, takes), (after[inner], up_to[inner], -takes[inner])
    )


def divided(loads: list[Floats], many: list[int], joined: np.ufunc = np.maximum) -> float:
    """The smallest largest load, or sum, of a path in intervals: at most one for each of so many processors of each class."""
    known: dict[tuple[int, ...], Floats] = {}
    for used in product(*(range(each + 1) for each in many)):
        best = np.full(len(loads[0]), inf)
        best[0] = 0.0
        for kind, each in enumerate(used):
            if each:
                before = known[(*used[:kind], each - 1, *used[kind + 1 :])]
                best = np.minimum(best, joined(before[:, None], loads[kind]).min(axis=0))
        known[used] = best
    return float(known[tuple(many)][-1])
