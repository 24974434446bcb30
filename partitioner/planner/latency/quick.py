"""The clock again, in one loop, for searches that ask it ten thousand times: how long an order on given lanes takes.

Says what `partitioner.planner.timing.timed` says, and for every task also what it waited for. What lanes share, what a host
issues are left to the clock itself, and processors that stand still while they send to `Standing`. Where nothing passes, lanes
that cannot be told apart are one pool, and an order says which of them a task has.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from partitioner.ir.problem import Problem
from partitioner.planner.latency.sites import sites
from partitioner.planner.latency.standing import Standing
from partitioner.planner.resources import Busy
from partitioner.planner.timing import timed


@dataclass(frozen=True, eq=False)
class Timed:
    """An order and lanes, and what comes of them.

    Args:
        seconds: the makespan.
        order: all tasks, and sends where processors stand still (`Standing`).
        lanes: the lane of each task.
        start: when each task starts.
        end: when it ends.
        ready: when all that it waits for is there.
        cause: the predecessor that is there last; -1 for none.
    """

    seconds: float
    order: list[int]
    lanes: Sequence[int]
    start: Sequence[float]
    end: Sequence[float]
    ready: Sequence[float]
    cause: Sequence[int]


def _plain(problem: Problem) -> bool:
    """Whether lanes share nothing, issue for themselves and fetch nothing."""
    kinds = [problem.kinds[each.kind] for each in problem.processors]
    shared = any(each.lanes > 1 and kind.share is not None for each, kind in zip(problem.processors, kinds, strict=True))
    return not problem.fetched and not shared and all(kind.issue is None for kind in kinds)


def _pools(problem: Problem) -> list[tuple[int, ...]]:
    """The lanes that cannot be told apart, together; each by itself where something passes."""
    pools = sites(problem)[1]
    if _plain(problem) and not any(problem.routes.values()) and not any(pool.wait for pool in pools):
        return [pool.lanes for pool in pools]
    return [(lane,) for lane in range(len(problem.lanes))]


class Quick:
    """Times orders of one problem.

    Args:
        problem: whose tables are laid out once for all.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, count = problem, len(problem.processors)
        self.plain, self.pools = _plain(problem), _pools(problem)
        self.standing = Standing(problem) if self.plain and problem.stands else None
        self.pool_of = {lane: number for number, pool in enumerate(self.pools) for lane in pool}
        self.before = [sorted(set(each)) for each in problem.before]
        self.routes = [problem.routes.get((one, other), ()) for one in range(count) for other in range(count)]
        self.lengths = [
            [channel.seconds(size) for channel in problem.channels] if len(problem.channels) <= 64 else []
            for _, size in problem.values
        ]
        self.handoff = [each.handoff for each in problem.processors]

    def __call__(self, order: list[int], lanes: Sequence[int]) -> Timed:
        """What comes of an order and lanes, or pools of them."""
        if len(self.pools) < len(self.problem.lanes):
            return self.pooled(order, lanes)
        if self.standing:
            times = self.standing(order, lanes)
            return Timed(self.makespan(times[1], lanes), order, lanes, *times)
        return self.plainly(order, lanes) if self.plain else self.slowly(order, lanes)

    def pooled(self, order: list[int], lanes: Sequence[int]) -> Timed:
        """Each task on the lane of its pool that is free the latest in time, or else the first."""
        count, home, table, before, pool_of = len(order), self.problem.lanes, self.problem.seconds, self.before, self.pool_of
        start, end, own, wait, cause = [0.0] * count, [0.0] * count, [0] * count, [0.0] * count, [-1] * count
        free = [[(0.0, lane) for lane in pool] for pool in self.pools]
        for task in order:
            ready, last = 0.0, -1
            for source, _ in before[task]:
                if end[source] > ready:
                    ready, last = end[source], source
            line = free[pool_of[lanes[task]]]
            at, lane = line.pop(max(0, bisect_right(line, (ready, inf)) - 1))
            wait[task], cause[task], own[task] = ready, last, lane
            start[task] = begin = at if at > ready else ready
            end[task] = until = begin + table[home[lane]][task]
            insort(line, (until, lane))
        return Timed(max(end), order, own, start, end, wait, cause)

    def slowly(self, order: list[int], lanes: Sequence[int]) -> Timed:
        """By the clock."""
        clock = timed(self.problem, lanes, order)
        wait, cause = [0.0] * len(order), [-1] * len(order)
        for task in order:
            for source, _ in self.before[task]:
                if clock.end[source] >= wait[task]:
                    wait[task], cause[task] = clock.end[source], source
            if any(lanes[source] != lanes[task] for source, _ in self.before[task]):
                wait[task] = clock.start[task]
        return Timed(clock.makespan, order, lanes, clock.start, clock.end, wait, cause)

    def plainly(self, order: list[int], lanes: Sequence[int]) -> Timed:
        """By the same steps as the clock."""
        problem, count, places = self.problem, len(order), len(self.problem.processors)
        start, end, wait, cause = [0.0] * count, [0.0] * count, [0.0] * count, [-1] * count
        busy = [Busy() for _ in problem.lanes]
        channels = [Busy() for _ in problem.channels]
        arrived: dict[tuple[int, int], float] = {}
        home, handoff, routes, lengths, table = problem.lanes, self.handoff, self.routes, self.lengths, problem.seconds
        before = problem.before
        for task in order:
            lane = lanes[task]
            here = home[lane]
            hand = handoff[here]
            ready, last = 0.0 if lane == 0 else hand, -1
            for source, value in before[task]:
                at, there = end[source], lanes[source]
                if there != lane:
                    if value >= 0 and home[there] != here:
                        for channel in routes[home[there] * places + here]:
                            known = arrived.get((value, channel))
                            if known is None:
                                length = lengths[value][channel] if lengths[value] else self.length(value, channel)
                                if not length:
                                    continue
                                begin = channels[channel].gap(at, length)
                                known = arrived[value, channel] = begin + length
                                channels[channel].take(begin, known)
                            if known > at:
                                at = known
                    at += hand
                if at > ready:
                    ready, last = at, source
            seconds, line = table[here][task], busy[lane]
            begin = line.gap(ready, seconds)
            line.take(begin, begin + seconds)
            start[task], end[task], wait[task], cause[task] = begin, begin + seconds, ready, last
        return Timed(self.makespan(end, lanes), order, lanes, start, end, wait, cause)

    def length(self, value: int, channel: int) -> float:
        """Seconds of a value on a channel."""
        return self.problem.channels[channel].seconds(self.problem.values[value][1])

    def makespan(self, end: Sequence[float], lanes: Sequence[int]) -> float:
        """When the last task ends, and the first lane's thread knows of it."""
        back, after = self.problem.back, self.problem.after
        if not back:
            return max(end)
        return max(each if lanes[task] == 0 or after[task] else each + back for task, each in enumerate(end))
