"""The clock again, in one loop, for searches that ask it ten thousand times: how long an order on given lanes takes.

Says what `partitioner.planner.timing.timed` says, and for every task also what it waited for. What lanes share, what a host
issues are left to the clock itself, and processors that stand still while they send to `Standing`. Where nothing passes, lanes
that cannot be told apart are one pool, and an order says which of them a task has.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from partitioner.ir.problem import Problem
from partitioner.planner.latency.bounds import tails
from partitioner.planner.latency.sites import sites
from partitioner.planner.latency.standing import Standing
from partitioner.planner.latency.states import STEP, State, Times
from partitioner.planner.prices import able_seconds
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
        marks: states after every so many tasks, as far as anybody has asked: orders that begin alike go on from one.
    """

    seconds: float
    order: list[int]
    lanes: Sequence[int]
    start: Sequence[float]
    end: Sequence[float]
    ready: Sequence[float]
    cause: Sequence[int]
    marks: list[State] = field(default_factory=list)


def plain(problem: Problem) -> bool:
    """Whether lanes share nothing, issue for themselves and fetch nothing."""
    kinds = [problem.kinds[each.kind] for each in problem.processors]
    shared = any(each.lanes > 1 and kind.share is not None for each, kind in zip(problem.processors, kinds, strict=True))
    return not problem.fetched and not shared and all(kind.issue is None for kind in kinds)


def _pools(problem: Problem) -> list[tuple[int, ...]]:
    """The lanes that cannot be told apart, together; each by itself where something passes."""
    pools = sites(problem)[1]
    if plain(problem) and not any(problem.routes.values()) and not any(pool.wait for pool in pools):
        return [pool.lanes for pool in pools]
    return [(lane,) for lane in range(len(problem.lanes))]


class Quick:
    """Times orders of one problem.

    Args:
        problem: whose tables are laid out once for all.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, count = problem, len(problem.processors)
        self.plain, self.pools = plain(problem), _pools(problem)
        self.pool_of = {lane: number for number, pool in enumerate(self.pools) for lane in pool}
        self.before = [sorted(set(each)) for each in problem.before]
        self.routes = [problem.routes.get((one, other), ()) for one in range(count) for other in range(count)]
        self.lengths = [
            [channel.seconds(size) for channel in problem.channels] if len(problem.channels) <= 64 else []
            for _, size in problem.values
        ]
        self.handoff = [each.handoff for each in problem.processors]
        fastest = able_seconds(problem).min(axis=0).tolist()
        self.rest = [tail * (1 - 1e-12) - own for tail, own in zip(tails(problem), fastest, strict=True)]
        self.standing = Standing(problem, self.rest) if self.plain and problem.stands else None
        self.merged = len(self.pools) < len(problem.lanes)
        held = self.standing is not None and all(self.standing.held)  # whoever holds the lanes has the channel
        self.channels = 0 if held else len(problem.channels)
        self.step = max(STEP, (self.channels + len(problem.lanes)) // 2)  # a mark takes as long as so many tasks do
        self.run = self.pooled if self.merged else self.standing.run if self.standing else self.plainly

    def __call__(self, order: list[int], lanes: Sequence[int], near: Timed | None = None) -> Timed:
        """What comes of an order and lanes, or pools of them; see `within`."""
        found = self.within(order, lanes, near)
        assert found is not None
        return found

    def within(
        self, order: list[int], lanes: Sequence[int], near: Timed | None, most: float = inf, best: float = inf
    ) -> Timed | None:
        """What comes of an order and lanes; ``None`` as soon as it is seen that nothing good does.

        Args:
            order: all tasks, after what they wait for.
            lanes: of each task.
            near: what came of others; where both begin alike, nothing is timed again.
            most: what the makespan and the ends of lanes, on average, may come to, together,
            best: unless the makespan is less than this.
        """
        if not self.plain:
            return self.slowly(order, lanes)
        count, known = len(lanes), near.marks if near else []
        alike = self.alike(order, lanes, near) if near else 0
        marks = known[: alike // self.step]
        place = self.step * len(marks)
        state = marks[-1].copy() if marks else self.begun()
        if near:
            times = list(near.start), list(near.end), list(near.ready), list(near.cause), list(lanes)
            if self.merged:
                for task in order[:place]:
                    times[4][task] = near.lanes[task]
        else:
            times = [0.0] * count, [0.0] * count, [0.0] * count, [-1] * count, list(lanes)
        while place + self.step <= alike:
            self.run(state, order[place : place + self.step], times)
            place += self.step
            marks.append(state.copy())
            known.append(marks[-1])
        step = self.step if most < inf else len(order)
        for at in range(place, len(order), step):
            self.run(state, order[at : at + step], times)
            if state.least >= best and state.least + state.last() > most:
                return None
        start, end, wait, cause, own = times
        return Timed(self.makespan(end, own), order, own, start, end, wait, cause, marks)

    def begun(self) -> State:
        """Nothing is taken yet."""
        free = [[(0.0, lane) for lane in pool] for pool in self.pools] if self.merged else []
        return State([Busy() for _ in self.problem.lanes], [Busy() for _ in range(self.channels)], {}, free)

    def alike(self, order: Sequence[int], lanes: Sequence[int], near: Timed) -> int:
        """How many tasks at the beginning of an order are those of another one, on the same lanes, with the same sends."""
        other: set[int] = set()
        if lanes != near.lanes:
            other = {task for task, (one, before) in enumerate(zip(lanes, near.lanes, strict=True)) if one != before}
            if self.standing:
                other |= self.standing.items(value for task in other for _, value in self.problem.before[task] if value >= 0)
        if order is near.order and not other:
            return len(order)
        for place, (one, before) in enumerate(zip(order, near.order, strict=False)):
            if one != before or one in other:
                return place
        return min(len(order), len(near.order))

    def pooled(self, state: State, order: Sequence[int], times: Times) -> None:
        """Each task on the lane of its pool that is free the latest in time, or else the first."""
        home, table, before, pool_of, free = self.problem.lanes, self.problem.seconds, self.before, self.pool_of, state.free
        start, end, wait, cause, own = times
        rest, least = self.rest, state.least
        for task in order:
            ready, last = 0.0, -1
            for source, _ in before[task]:
                if end[source] > ready:
                    ready, last = end[source], source
            line = free[pool_of[own[task]]]
            at, lane = line.pop(max(0, bisect_right(line, (ready, inf)) - 1))
            wait[task], cause[task], own[task] = ready, last, lane
            start[task] = begin = at if at > ready else ready
            end[task] = until = begin + table[home[lane]][task]
            insort(line, (until, lane))
            if until + rest[task] > least:
                least = until + rest[task]
        state.least = least

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

    def plainly(self, state: State, order: Sequence[int], times: Times) -> None:
        """By the same steps as the clock."""
        start, end, wait, cause, lanes = times
        problem, places, arrived, busy, channels = self.problem, len(self.handoff), state.arrived, state.busy, state.channels
        home, handoff, routes, lengths, table = problem.lanes, self.handoff, self.routes, self.lengths, problem.seconds
        before, rest, least = problem.before, self.rest, state.least
        for task in order:
            lane = lanes[task]
            here = home[lane]
            hand = handoff[here]
            ready, last = 0.0 if lane == 0 else hand, -1
            for source, value in before[task]:
                at, there = end[source], lanes[source]
                if there != lane:
                    if value >= 0 and home[there] != here:
                        come = arrived.get((value, ~here))
                        if come is None:
                            for channel in routes[home[there] * places + here]:
                                known = arrived.get((value, channel))
                                if known is None:
                                    length = lengths[value][channel] if lengths[value] else self.length(value, channel)
                                    if not length:
                                        continue
                                    known = arrived[value, channel] = channels[channel].fill(at, length) + length
                                if known > at:
                                    at = known
                            arrived[value, ~here] = at
                        else:
                            at = come
                    at += hand
                if at > ready:
                    ready, last = at, source
            seconds = table[here][task]
            begin = busy[lane].fill(ready, seconds)
            until = begin + seconds
            start[task], end[task], wait[task], cause[task] = begin, until, ready, last
            if until + rest[task] > least:
                least = until + rest[task]
        state.least = least

    def length(self, value: int, channel: int) -> float:
        """Seconds of a value on a channel."""
        return self.problem.channels[channel].seconds(self.problem.values[value][1])

    def makespan(self, end: Sequence[float], lanes: Sequence[int]) -> float:
        """When the last task ends, and the first lane's thread knows of it."""
        back, after = self.problem.back, self.problem.after
        if not back:
            return max(end)
        return max(each if lanes[task] == 0 or after[task] else each + back for task, each in enumerate(end))
