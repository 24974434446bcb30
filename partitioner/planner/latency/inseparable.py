"""Tasks that no answer below some end has apart, as groups: what would pass between them takes longer than there is.

    a 3 ---9---> b 4        apart, b ends at 16, so in any schedule that ends before 16 both share a processor

Below the end of an answer that is known nothing is lost by it, and what is left is smaller, and has larger bounds. Below a
bound, which no answer is, it says what an answer must look like that comes close to it: there another one may begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
from networkx.utils import UnionFind

from partitioner.ir.problem import Problem
from partitioner.planner.latency.bounds import reach
from partitioner.planner.latency.homes import closed
from partitioner.planner.prices import Table, able_seconds

SAFE = 1 - 1e-12
"""Part of an end that sums may take, as they are rounded, to take all of it."""


def inseparable(problem: Problem, end: float) -> Problem:
    """The problem with tasks that are together in all answers below ``end`` as groups; itself, if there are none.

    Args:
        problem: for latency or throughput.
        end: what such an answer takes.

    >>> from partitioner.ir.problem import Channel, Kind, Processor
    >>> two, ways = (Processor("x", 0), Processor("y", 0)), {(0, 1): (0,), (1, 0): (0,)}
    >>> seconds, link = (Kind("gpu", {1: [3.0, 4.0]}),), (Channel("link", 1.0, 0.0, (0, 1)),)
    >>> pair = Problem("pair", ("a", "b"), seconds, two, [(0, 1, 0)], [(0, 9.0)], link, ways)
    >>> inseparable(pair, 15.0).group, inseparable(pair, 17.0).group
    ([0, 0], ())
    """
    if not problem.travels or len(problem.processors) < 2:
        return problem
    seconds, passage = able_seconds(problem), _passages(problem)
    least, loads = seconds.min(axis=0), problem.objective == "throughput"
    heads, tails, longest = (0.0 * least, 0.0 * least, float(least.max())) if loads else reach(problem)
    passed = [each for each in problem.edges if each[2] >= 0]
    if not passed or float(passage.max()) + 2 * longest < end:
        return problem
    source, target, value = np.array(passed).T
    if loads:
        apart = passage[value] + (np.minimum(least[source], least[target]) if problem.waits else 0.0)
    else:
        apart = passage[value] + (heads + least)[source] + (least + tails)[target]
    far = np.flatnonzero(apart > end * SAFE).tolist()
    if not far:
        return problem
    together: UnionFind[int] = UnionFind(range(len(problem.tasks)))
    for each in far:
        together.union(int(source[each]), int(target[each]))
    return closed(joined(problem, [together[task] for task in range(len(problem.tasks))]))


def _passages(problem: Problem) -> Table:
    """Seconds that each value takes, or is load of some processor, at least, if a reader of it is elsewhere."""
    pairs, sizes = len(problem.processors) * (len(problem.processors) - 1), np.array([size for _, size in problem.values])
    if len(problem.routes) < pairs or () in problem.routes.values():
        return np.zeros(len(sizes))
    channels = [(each.latency, 1 / each.bandwidth) for each in problem.channels]
    routes = {tuple(channels[each] for each in route) for route in problem.routes.values()}
    ways = [np.array([latency + rate * sizes for latency, rate in route]) for route in routes]
    loads = problem.objective == "throughput"
    found: Table = np.min([each.max(axis=0) if loads else each.sum(axis=0) for each in ways], axis=0)
    return found


def joined(problem: Problem, cluster: Sequence[int], room: float = inf) -> Problem:
    """The problem with the tasks of a cluster as one group, as far as they may share a processor, and fit there.

    Args:
        problem: the problem; it comes back as it is where clusters join no groups.
        cluster: of each task.
        room: bytes that a group which is joined may hold.
    """
    root: dict[int, int] = {}
    first: dict[int, int] = {}
    held: dict[int, float] = {}
    for group, tasks in problem.members.items():
        one = first.setdefault(cluster[tasks[0]], group)
        more = held.get(one, 0.0) + problem.demand[group]
        if problem.able[group] != problem.able[one] or (one in held and more > room):
            one, more = group, problem.demand[group]
            first[cluster[tasks[0]]] = one
        root[group], held[one] = one, more
    if all(one == group for group, one in root.items()):
        return problem
    pin = {root[group]: where for group, where in problem.pin.items()}
    return replace(problem, group=[root[group] for group in problem.group_of], pin=pin)
