"""Tasks that cannot be told apart: a schedule with two of them exchanged is the same, so they may be added in their order.

    a -> b1 b2 b3 -> c      six schedules of b1, b2 and b3 are one; a beam that keeps all six has no room for others

Source: Sinnen, "Reducing the solution space of optimal task scheduling", Computers & Operations Research 43, 2014 (identical
tasks in a fixed order).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from partitioner.ir.problem import Problem


def twins(problem: Problem) -> Iterator[tuple[int, int]]:
    """Pairs of tasks that take the same everywhere, read the same, and make the same for the same tasks; each set in a row.

    >>> from partitioner.ir.problem import ORDER, Kind, Processor
    >>> edges = [(0, 1, ORDER), (0, 2, ORDER), (0, 3, ORDER), (1, 4, ORDER), (2, 4, ORDER), (3, 4, ORDER)]
    >>> fork = Problem("fork", tuple("abcde"), (Kind("cpu", {1: [1.0] * 5}),), (Processor("cpu", 0, lanes=2),), edges)
    >>> list(twins(fork))
    [(1, 2), (2, 3)]
    """
    made: list[list[tuple[float, tuple[int, ...]]]] = [[] for _ in problem.tasks]
    for (maker, size), readers in zip(problem.values, problem.readers, strict=True):
        made[maker].append((size, tuple(sorted(readers))))
    tables = list({id(row): row for row in problem.seconds}.values())
    alike: defaultdict[object, list[int]] = defaultdict(list)
    for task, (before, after) in enumerate(zip(problem.before, problem.after, strict=True)):
        group = problem.group_of[task]
        alone = len(problem.members[group]) == 1
        rules = (tuple(problem.able[group]), problem.demand[group]) if alone else group
        times = tuple(row[task] for row in tables)
        alike[times, rules, tuple(sorted(before)), tuple(sorted(after)), tuple(sorted(made[task]))].append(task)
    for tasks in alike.values():
        yield from pairwise(tasks)
