"""A schedule by rank: each task, the most urgent first, to the lane on which it ends first, into a gap if there is one.

    order a b c d on two lanes      0 | a a | b b b b | d |
                                    1       | c c c |          c ends first on lane 1

Scheduling the mirrored problem - every edge turned round - and reading the result backwards gives a schedule that is tight at
its end instead of at its beginning; doing one after the other pulls tasks together from both sides.

Sources: Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
TPDS 13(3), 2002; Li and Willis, "An iterative scheduling technique for resource-constrained project scheduling", EJOR 56, 1992.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.feasible import Feasible
from partitioner.planner.timing import Clock


def earliest(problem: Problem, order: Sequence[int], feasible: Feasible, later: Sequence[Sequence[float]] = ()) -> Clock:
    """Put every task on the lane on which it ends first.

    Args:
        problem: what to place.
        order: all tasks; it respects every edge.
        feasible: where tasks may go; it is told where they went.
        later: by task and processor, what is added to a task's end before ends are compared, as what it wastes. Empty: nothing.

    Raises:
        PlacementError: a task fits nowhere any more.
    """
    clock = Clock(problem)
    when, place, home, table, ended, busy = clock.when, clock.place, problem.lanes, problem.seconds, clock.end, clock.lanes
    lanes_of = [range(first, first + each.lanes) for first, each in zip(problem.first_lane, problem.processors, strict=True)]
    back, after, before, placed, quickest = problem.back, problem.after, problem.before, clock.lane, _quickest(problem)
    for task in order:
        ready = far = 0.0
        near = set[int]()
        for source, value in before[task]:
            if value != ISSUE:
                end = ended[source]
                ready, far = max(ready, end), max(far, end + quickest[value] if value >= 0 else end)
                near.add(home[placed[source]])
        ways: list[tuple[float, int]] = []
        for processor in feasible.processors(task):
            seconds = table[processor][task]
            extra, at = later[task][processor] if later else 0.0, ready if processor in near else far
            for lane in lanes_of[processor]:
                ways.append((busy[lane].gap(at, seconds) + seconds + extra, lane))
        ways.sort()  # by when it would end at least: if nothing waited for a channel
        best, chosen, free, settled = inf, ways[0][1], 0.0, None
        for least, lane in ways:
            if least > best:
                break
            turn = when(task, lane)
            end = turn[1] + later[task][home[lane]] if later else turn[1]
            if lane and not after[task]:
                end += back
            last = busy[lane].ends[-1] if busy[lane].ends else -1.0
            if end < best or (end == best and last > free):  # of lanes that are equal so far, that which waits the shortest
                best, chosen, free, settled = end, lane, last, turn
        feasible.assign(task, home[chosen])
        place(task, chosen, settled)
    return clock


def _quickest(problem: Problem) -> list[float]:
    """Seconds that each value is on its way at least, from any processor to any other one."""
    count, least = len(problem.processors), 1 - 1e-12
    routes = [[problem.channels[each] for each in route] for route in problem.routes.values()]
    if len(routes) < count * (count - 1) or not all(routes):
        return [0.0] * len(problem.values)
    latency = min((sum(each.latency for each in route) for route in routes), default=0.0) * least
    per_byte = min((sum(1.0 / each.bandwidth for each in route) for route in routes), default=0.0) * least
    return [latency + per_byte * size for _, size in problem.values]


def mirrored(problem: Problem) -> Problem:
    """The problem read from its end: task ``t`` becomes ``n - 1 - t``, every edge and route is turned round.

    A value that several tasks read becomes one value for each of them, for each makes what its maker then reads.

    >>> from partitioner.ir.problem import ORDER, Kind, Problem, Processor
    >>> chain = Problem("chain", ("a", "b"), (Kind("cpu", {1: [2.0, 4.0]}),), (Processor("cpu", 0),), [(0, 1, ORDER)])
    >>> mirrored(chain).tasks, mirrored(chain).edges
    (('b', 'a'), [(0, 1, -1)])
    """
    last = len(problem.tasks) - 1
    edges: list[tuple[int, int, int]] = []
    values: list[tuple[int, float]] = []
    for source, target, value in problem.edges:
        if value >= 0:
            values.append((last - target, problem.values[value][1]))
        edges.append((last - target, last - source, len(values) - 1 if value >= 0 else value))
    return replace(
        problem,
        tasks=problem.tasks[::-1],
        kinds=tuple(
            replace(
                kind,
                seconds={width: list(row)[::-1] for width, row in kind.seconds.items()},
                issue=None,
                share=kind.share and list(kind.share)[::-1],
            )
            for kind in problem.kinds
        ),
        edges=edges,
        values=values,
        given=(),
        routes={(there, here): route[::-1] for (here, there), route in problem.routes.items()},
        memory=list(problem.memory)[::-1],
        group=list(problem.group)[::-1],
        pin=dict(problem.pin) if problem.group else {last - task: where for task, where in problem.pin.items()},
        backward=frozenset(last - task for task in problem.backward),
    )
