"""Seconds that no schedule can beat where values travel: what would come too late from elsewhere runs here, one by one.

    a 3 ---9---\\          from elsewhere, nothing of the two is here before 12;
                c 1       if both are here, one after the other, c starts at 7,
    b 4 ---9---/          and not at 4, which is what each of them says alone

The same holds behind a task. And if the maker and the reader of a value cannot be apart below some end, they are together: such
clusters grow as the end falls, until one has more to do than there is time for, or holds more than fits.

Source: Papadimitriou and Yannakakis, "Towards an architecture-independent analysis of parallel algorithms", SIAM Journal on
Computing 19(2), 1990.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.prices import Table, able_seconds

MOST_TASKS, LARGEST = 200, 300_000
"""Tasks, and triples of a task, an edge or task, and a class that are looked at: at most some twenty milliseconds. `list` takes
some hundred there, and hardly more than this for more tasks."""

NEVER = 1e30
"""Seconds of a task where it cannot run, and of no way: infinite ones have no product with 0."""


@dataclass(frozen=True)
class Classes:
    """Processors that are equal but for their links, as one, with the least way between any two of them.

    Args:
        processors: their numbers, by class.
        seconds: by task and class.
        lanes: of one processor, by class.
        caps: bytes of one processor, by class.
        held: bytes, by task.
        ways: to each class from another processor of each: seconds where nothing passes; where something does, and of a byte.
    """

    processors: tuple[tuple[int, ...], ...]
    seconds: Table
    lanes: Table
    caps: Table
    held: Table
    ways: Table

    def elsewhere(self, ends: Table, size: float | None) -> Table:
        """When what ends at ``ends``, by class, is on a processor of each class from another one; ``None``: nothing passes."""
        bare, fixed, per_byte = self.ways
        found: Table = ((bare if size is None else fixed + per_byte * size) + ends).min(axis=1)
        return found


Ties = Sequence[Sequence[tuple[int, float | None]]]
"""By task, those that it waits for, and how many bytes pass from each: ``None`` for nothing, infinite in its own group."""


def together_bound(problem: Problem) -> float:
    """The longest way through a task, and the least end at which clusters have time and room; 0 where it would take long.

    >>> from partitioner.ir.problem import Channel, Kind, Problem, Processor
    >>> two, ways = (Processor("x", 0), Processor("y", 0)), {(0, 1): (0,), (1, 0): (0,)}
    >>> seconds, link = (Kind("gpu", {1: [3.0, 4.0, 1.0]}),), (Channel("link", 1.0, 0.0, (0, 1)),)
    >>> passed = [(0, 2, 0), (1, 2, 1)], [(0, 9.0), (1, 9.0)]
    >>> round(together_bound(Problem("join", ("a", "b", "c"), seconds, two, *passed, link, ways)), 6)
    8.0
    """
    if not problem.travels or len(problem.processors) < 2 or len(problem.tasks) > MOST_TASKS:
        return 0.0
    edges, classes = [each for each in dict.fromkeys(problem.edges) if each[2] != ISSUE], classes_of(problem)
    if classes.seconds.size * (len(edges) + len(problem.tasks)) > LARGEST:
        return 0.0
    group, sizes = problem.group_of, [size for _, size in problem.values]
    before: list[list[tuple[int, float | None]]] = [[] for _ in problem.tasks]
    after: list[list[tuple[int, float | None]]] = [[] for _ in problem.tasks]
    for maker, reader, value in edges:
        size = inf if group[maker] == group[reader] else sizes[value] if value >= 0 else None
        before[reader].append((maker, size))
        after[maker].append((reader, size))
    heads = _reach(classes, before, range(len(before)))
    turned = replace(classes, ways=classes.ways.transpose(0, 2, 1))
    tails = _reach(turned, after, range(len(after) - 1, -1, -1))
    longest = float((heads + classes.seconds + tails).min(axis=1).max())
    return max(longest, _clustered(problem, classes, before, heads, tails)) * (1 - 1e-12)


def classes_of(problem: Problem) -> Classes:
    """The classes of a problem's processors."""
    seconds, numbers = able_seconds(problem), dict[object, int]()
    likeness = zip(seconds, problem.processors, problem.caps, strict=True)
    place = [numbers.setdefault((row.tobytes(), each.lanes, cap), len(numbers)) for row, each, cap in likeness]
    alike = tuple(tuple(each for each, at in enumerate(place) if at == number) for number in range(len(numbers)))
    first = [each[0] for each in alike]
    ways = np.full((3, len(first), len(first)), NEVER)
    for there, each in enumerate(problem.processors):
        for here in (here for here in range(len(place)) if here != there):
            route = [problem.channels[channel] for channel in problem.routes.get((here, there), ())]
            latency, per_byte = sum(channel.latency for channel in route), sum(1.0 / channel.bandwidth for channel in route)
            least = ways[:, place[there], place[here]]
            least[:] = np.minimum(least, (each.handoff, each.handoff + latency, per_byte))
    lanes = np.array([problem.processors[number].lanes for number in first], dtype=float)
    caps = np.array([problem.caps[number] for number in first]) * (1 + 1e-9)
    held = np.array(problem.memory or [0.0] * len(problem.tasks), dtype=float)
    return Classes(alike, np.minimum(seconds[first], NEVER).T.copy(), lanes, caps, held, ways)


def _reach(classes: Classes, ties: Ties, order: Sequence[int]) -> Table:
    """Seconds before each task, by class, in any schedule: after its own ties, and after all that must be on its processor."""
    seconds, (count, kinds) = classes.seconds, classes.seconds.shape
    reach, work = np.zeros((count, kinds)), seconds / classes.lanes
    apart = np.full((count, kinds, count), -inf)  # by task, class and another one: when it can start there if the other is not
    for task in order:
        own, soonest = apart[task], reach[task]
        for source, size in ties[task]:
            ends = reach[source] + seconds[source]
            far = classes.elsewhere(ends, size) if size != inf else np.full(kinds, inf)
            np.maximum(soonest, np.minimum(ends, far), out=soonest)
            np.maximum(own, np.minimum(apart[source] + seconds[source][:, None], far[:, None]), out=own)
        for kind in range(kinds) if ties[task] else ():
            if seconds[task, kind] < NEVER:
                room = classes.caps[kind] - classes.held[task]
                soonest[kind] = _soonest(soonest[kind], own[kind], reach[:, kind], work[:, kind], classes.held, room)
        own[:, task] = inf
    return reach


def _soonest(start: float, apart: Table, reach: Table, work: Table, held: Table, room: float) -> float:
    """When a task can start: what comes from elsewhere is there by then, and the rest has run here, and fits beside it.

    Args:
        start: when it can, as far as is known.
        apart: when it can if another task is elsewhere, by that; minus infinite for what it does not wait for.
        reach: when each other task can start here.
        work: seconds of each here, of all lanes.
        held: its bytes.
        room: bytes beside the task.
    """
    late = np.flatnonzero(apart > start)
    if not len(late) or (held[late].sum() <= room and reach[late].max() + work[late].sum() <= start):
        return start
    late = late[reach[late].argsort()]
    apart, reach, work, held = apart[late], reach[late], work[late], held[late]

    def through(moment: float) -> float:
        """When all is through that would be late if it were elsewhere."""
        here = apart > moment
        if held[here].sum() > room:
            return inf
        return float((reach[here] + work[here][::-1].cumsum()[::-1]).max(initial=0.0))

    moments = [start, *np.sort(apart).tolist()]
    low, high, least = -1, len(moments) - 1, inf
    while high - low > 1:  # the first moment at which all is through
        middle = (low + high) // 2
        ended = through(moments[middle])
        if ended <= moments[middle]:
            high = middle
        else:
            low, least = middle, ended
    return min(moments[high], least) if low >= 0 else start


def _clustered(problem: Problem, classes: Classes, before: Ties, heads: Table, tails: Table) -> float:
    """The least end at which every cluster of tasks that are together then has time and room on some processor."""
    ends, rest = heads + classes.seconds, classes.seconds + tails
    number = {group: at for at, group in enumerate(problem.members)}
    root = [number[group] for group in problem.group_of]
    pairs = [
        (float((classes.elsewhere(ends[maker], size) + rest[reader]).min()), root[maker], root[reader])
        for reader, sources in enumerate(before)
        for maker, size in sources
        if size != inf
    ]
    members = list(problem.members.values())
    work = [(classes.seconds[tasks] / classes.lanes).sum(axis=0) for tasks in members]
    head, tail = [heads[tasks].min(axis=0) for tasks in members], [tails[tasks].min(axis=0) for tasks in members]
    held, cluster, least = [float(classes.held[tasks].sum()) for tasks in members], list(range(len(members))), 0.0
    for end, one, other in sorted(pairs, reverse=True):
        if end <= least:
            break
        while cluster[one] != one:
            one = cluster[one]
        while cluster[other] != other:
            other = cluster[other]
        if one == other:
            continue
        cluster[other], held[one], work[one] = one, held[one] + held[other], work[one] + work[other]
        head[one], tail[one] = np.minimum(head[one], head[other]), np.minimum(tail[one], tail[other])
        needed = float(np.where(held[one] <= classes.caps, head[one] + work[one] + tail[one], inf).min())
        least = max(least, min(needed, end))  # they are together, or the end is that of two that are apart
    return least
