"""Which tasks must share a processor: groups and, for contiguity, everything that lies between two tasks of one of them.

tasks   a > b > d       groups {a, d}, and no path may leave a processor and come back:
        a > c           b lies between a and d, so a, b and d are one unit; c is another
"""

from __future__ import annotations

from collections.abc import Sequence

from networkx.utils import UnionFind

from partitioner.ir.problem import Problem
from partitioner.planner.feasible import between
from partitioner.planner.throughput.blocks import blocks, numbered
from partitioner.planner.throughput.units import Reach, Units

MOST_FOR_CLOSURE = 12_000
"""Tasks of a problem for which who reaches whom is held as bits: a bit for each pair, and twice that."""


def units_of(problem: Problem, contiguous: bool) -> Units:
    """The units of a problem: its groups and, for contiguity, everything on a path between two tasks of one of them.

    Args:
        problem: what is placed.
        contiguous: whether a processor's forward tasks must be convex, whatever ``problem.contiguous`` says.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> cpu, edges = Kind("cpu", {1: [1.0, 1.0, 1.0, 1.0]}), [(0, 1, -1), (0, 2, -1), (1, 3, -1)]
    >>> problem = Problem("p", ("a", "b", "c", "d"), (cpu,), (Processor("x", 0),) * 2, edges, group=[0, 1, 2, 0])
    >>> units_of(problem, contiguous=False).unit_of, units_of(problem, contiguous=True).unit_of
    ([0, 1, 2, 0], [0, 0, 1, 0])
    """
    groups = numbered(problem.group_of)
    if not contiguous:
        return Units(problem, False, groups)
    if len(problem.tasks) > MOST_FOR_CLOSURE:
        return blocks(Units(problem, True, groups))
    after, before = _closure(problem)
    groups = _hulls(problem, groups)
    return Units(problem, True, groups, _reach(problem, groups, after, before))


def _closure(problem: Problem) -> tuple[list[int], list[int]]:
    """The forward tasks that each forward task leads to, and those that lead to it, as bits."""
    count, backward = len(problem.tasks), problem.backward
    after, before = [0] * count, [0] * count
    for task in range(count):
        for source, _ in problem.before[task]:
            if source not in backward and task not in backward:
                before[task] |= before[source] | 1 << source
    for task in reversed(range(count)):
        for target in problem.after[task]:
            if target not in backward and task not in backward:
                after[task] |= after[target] | 1 << target
    return after, before


def _hulls(problem: Problem, groups: Sequence[int]) -> list[int]:
    """Groups grown by what lies between their tasks, until nothing does."""
    while pairs := list(between(problem, groups)):
        together: UnionFind[int] = UnionFind(groups)
        for pair in pairs:
            together.union(*pair)
        groups = [together[group] for group in groups]
    return numbered(groups)


def _reach(problem: Problem, groups: Sequence[int], after: Sequence[int], before: Sequence[int]) -> Reach:
    count = max(groups, default=-1) + 1
    own, leads, led = [0] * count, [0] * count, [0] * count
    for task, unit in enumerate(groups):
        if task not in problem.backward:
            own[unit] |= 1 << task
            leads[unit] |= after[task]
            led[unit] |= before[task]
    return Reach(own, leads, led)
