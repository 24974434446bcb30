"""List scheduling with several schedules at once: of all that one more task would make of them, the most promising go on.

    0 | a | c          0 | a | b              what is still to be done, and every gap so far, say how long it takes at least;
    1 | b |            1 | c |    ...         the schedules with the least of that are kept, here two

A list schedule that leaves a gap where none may be has lost, whatever comes after it. A beam has other schedules, so it finds
those in which processors are busy from beginning to end. Tasks are added in the order in which they start, and none where
another one could end before it starts.

Source: Sabuncuoglu and Bayiz, "Job shop scheduling with beam search", EJOR 118(2), 1999.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import inf
from typing import NamedTuple

import numpy as np

from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.latency.bounds import tails
from partitioner.planner.latency.sites import sites
from partitioner.planner.latency.twins import twins
from partitioner.planner.prices import able_seconds, lane_counts, lane_prices, least_work

READY = 12
"""Tasks that wait for nothing any more and are looked at, the most urgent ones, for each schedule; and of those that only some
processors can run, one for each of these."""

Link = tuple[int, "Link"] | None
"""The tasks of a schedule, the last one first."""


@dataclass(frozen=True)
class Share:
    """What tasks must share: a processor, or the time of all processors at their prices.

    Args:
        work: seconds of each task, of which no schedule does more than one in a second.
        prices: ``(lane, part of a second)`` that a second of the lane counts.
    """

    work: Sequence[float]
    prices: Sequence[tuple[int, float]]


@dataclass(slots=True)
class Partial:
    """A schedule of some tasks: what is taken until when, and what is left."""

    now: float  # the last start
    free: list[float]  # by lane
    channels: list[float]
    arrived: dict[tuple[int, int], float]  # by value and channel
    end: list[float]
    lane: list[int]
    waits: list[int]  # for how many tasks each waits
    ready: list[int]  # those that wait for none, the most urgent first
    left: list[float]  # work, by share
    longest: float  # way through a task that is placed
    tails: float  # of the tasks that are left, weighed, on average
    room: list[float]  # memory, by processor
    home: dict[int, int]  # by group
    done: int  # tasks that are placed, as bits
    order: Link


class Child(NamedTuple):
    """One more task for a schedule, and how promising that is."""

    score: float
    number: int
    parent: Partial
    task: int
    lane: int
    start: float
    end: float
    longest: float


class Beam:
    """What does not change while schedules of one problem grow.

    Args:
        problem: what is scheduled. Contiguity is not looked at.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.before = [list({each for each in sources if each[1] != ISSUE}) for sources in problem.before]
        self.after = [list(dict.fromkeys(targets)) for targets in problem.after]
        self.waits = [len({source for source, _ in sources}) for sources in problem.before]
        for one, other in twins(problem):
            self.after[one].append(other)
            self.waits[other] += 1
        self.shares = _shares(problem)
        self.tails = tails(problem)
        self.least: list[float] = able_seconds(problem).min(axis=0).tolist()
        self.lanes_of = _alike(problem)
        stands = problem.channels if problem.stands else ()
        self.held = [[lane for lane, home in enumerate(problem.lanes) if home in each.ends] for each in stands]

    def __call__(self, looks: int, weight: float) -> tuple[list[int], list[int]] | None:
        """The lanes and the order of the best schedule; ``None`` if memory ran out in all of them.

        Args:
            looks: tasks that are tried at the end of a schedule, in all.
            weight: of the tails that are left, on average, beside what a schedule takes at least.
        """
        count = len(self.problem.tasks)
        tails = [weight * each / count for each in self.tails]
        beam, left = [self._empty(sum(tails))], looks
        for depth in range(count, 0, -1):
            children: list[Child] = []
            for each in beam:
                self._look(each, tails, children)
            left -= len(children)
            width = max(1, int(left / max(1, depth - 1) * len(beam) / max(1, len(children))))
            kept: dict[tuple[int, tuple[float, ...]], Partial] = {}
            for child in nsmallest(2 * width, children):
                grown = self._grown(child, tails)
                kept.setdefault((grown.done, tuple(sorted(grown.free) if self.problem.alike else grown.free)), grown)
                if len(kept) == width:
                    break
            beam = list(kept.values())
            if not beam:
                return None
        best = min(beam, key=lambda each: max(each.end))
        order, link = list[int](), best.order
        while link:
            order.append(link[0])
            link = link[1]
        return best.lane, order[::-1]

    def _empty(self, tails: float) -> Partial:
        problem, count = self.problem, len(self.problem.tasks)
        ready = sorted((task for task in range(count) if not self.waits[task]), key=self.tails.__getitem__, reverse=True)
        left = [sum(share.work) for share in self.shares]
        first = [0.0 if lane == 0 else problem.processors[home].handoff for lane, home in enumerate(problem.lanes)]
        free = [0.0] * len(problem.channels)
        return Partial(
            *(0.0, first, free, {}, [0.0] * count, [-1] * count, list(self.waits), ready, left),
            *(0.0, tails, list(problem.caps), {}, 0, None),
        )

    def _look(self, here: Partial, tails: Sequence[float], found: list[Child]) -> None:
        """Every way to add a task."""
        problem, now, free = self.problem, here.now, here.free
        ways: list[tuple[float, float, int, int]] = []
        first = inf
        for task, able in self._urgent(here):
            group = problem.group_of[task]
            need = problem.demand[group] if group not in here.home else 0.0
            for processor in able:
                if need > here.room[processor]:
                    continue
                seconds = problem.seconds[processor][task]
                for lanes in self.lanes_of[processor]:
                    ready = max(now, self._ready(here, task, lanes[0], False)) if self.before[task] else now
                    lane = lanes[0] if len(lanes) == 1 else _latest(free, lanes, ready)
                    start = free[lane] if free[lane] > ready else ready
                    end = start + seconds
                    if end < first:
                        first = end
                    ways.append((start, end, task, lane))
        for start, end, task, lane in ways:
            if start < first or end <= first:
                longest = max(here.longest, start + self.tails[task] - self.least[task] + end - start)
                bound = self._bound(here, longest, start, end, task, lane)
                score = bound + here.tails - tails[task]
                found.append(Child(score, len(found), here, task, lane, start, end, longest))

    def _urgent(self, here: Partial) -> Iterator[tuple[int, Sequence[int]]]:
        """The tasks to look at, each with the processors that it may have: the most urgent ones, and one for every processor.

        Where tasks have little choice, the most urgent ones may all be for one processor, while others stand still.
        """
        group_of, able_of, idle = self.problem.group_of, self.problem.able, set(range(len(self.problem.processors)))
        for place, task in enumerate(here.ready):
            group = group_of[task]
            able = able_of[group] if group not in here.home else (here.home[group],)
            if place < READY or not idle.isdisjoint(able):
                yield task, able
                idle.difference_update(able)
            if place >= READY and not idle:
                break

    def _bound(self, here: Partial, longest: float, start: float, end: float, task: int, lane: int) -> float:
        """Seconds that a schedule takes at least with one more task."""
        for share, left in zip(self.shares, here.left, strict=True):
            rest = left - share.work[task]
            if rest > 1e-12 * left:
                for each, price in share.prices:
                    at = here.free[each]
                    rest += price * (end if each == lane else at if at > start else start)
                if rest > longest:
                    longest = rest
        for other in here.ready[:2]:
            if other != task and start + self.tails[other] > longest:
                longest = start + self.tails[other]
        return longest

    def _ready(self, here: Partial, task: int, lane: int, commit: bool) -> float:
        """When all that a task reads is on a lane, if what travels goes after all that travels already."""
        problem, home = self.problem, self.problem.lanes
        there, ready = home[lane], 0.0
        handoff = problem.processors[there].handoff
        extra: dict[int, float] = {}
        stood: dict[int, float] = {}  # until when lanes stand still
        for source, value in self.before[task]:
            at, from_ = here.end[source], here.lane[source]
            if from_ != lane:
                if value >= 0 and home[from_] != there:
                    for channel in problem.routes.get((home[from_], there), ()):
                        known = here.arrived.get((value, channel))
                        if known is None:
                            seconds = problem.channels[channel].seconds(problem.values[value][1])
                            known = max(at, extra.get(channel, here.channels[channel])) + seconds if seconds else at
                            for each in self.held[channel] if self.held and seconds else ():
                                known = max(known, stood.get(each, here.free[each]) + seconds)
                            if seconds:
                                extra[channel] = known
                                if self.held:
                                    stood.update(dict.fromkeys(self.held[channel], known))
                            if commit:
                                here.arrived[value, channel] = known
                        at = max(at, known)
                at += handoff
            ready = max(ready, at)
        if commit:
            for channel, until in extra.items():
                here.channels[channel] = until
            for each, until in stood.items():
                here.free[each] = until
        return ready

    def _grown(self, child: Child, tails: Sequence[float]) -> Partial:
        """The schedule with its new task."""
        here, task, lane = child.parent, child.task, child.lane
        group, home = self.problem.group_of[task], self.problem.lanes[lane]
        grown = Partial(
            *(child.start, list(here.free), here.channels, here.arrived, list(here.end), list(here.lane), list(here.waits)),
            *([each for each in here.ready if each != task], here.left, child.longest, here.tails - tails[task]),
            *(here.room, here.home, here.done | 1 << task, (task, here.order)),
        )
        grown.left = [left - share.work[task] for left, share in zip(here.left, self.shares, strict=True)]
        if self.problem.channels:
            grown.channels, grown.arrived = list(here.channels), dict(here.arrived)
            self._ready(grown, task, lane, True)
        if group not in here.home:
            grown.home, grown.room = {**here.home, group: home}, list(here.room)
            grown.room[home] -= self.problem.demand[group]
        grown.free[lane] = grown.end[task] = child.end
        grown.lane[task] = lane
        for reader in self.after[task]:
            grown.waits[reader] -= 1
            if not grown.waits[reader]:
                grown.ready.append(reader)
        grown.ready.sort(key=self.tails.__getitem__, reverse=True)
        return grown


def _shares(problem: Problem) -> list[Share]:
    """All that tasks must share: each processor with what can run nowhere else, and all of them where tasks have a choice."""
    seconds, lanes, price = able_seconds(problem), lane_counts(problem), lane_prices(problem)
    only, found = np.isfinite(seconds).sum(axis=0) == 1, list[Share]()
    if not only.all():
        every = [(lane, float(price[home])) for lane, home in enumerate(problem.lanes)]
        found.append(Share(least_work(problem).tolist(), every))
    for home, row in enumerate(seconds):
        must = only & np.isfinite(row)
        if must.any():
            part = 1.0 / float(lanes[home])
            own = [(lane, part) for lane, where in enumerate(problem.lanes) if where == home]
            found.append(Share((np.where(must, row, 0.0) * part).tolist(), own))
    return found


def _alike(problem: Problem) -> list[list[tuple[int, ...]]]:
    """The lanes of each processor, together where one is as good as another; equal processors' are with the first of them."""
    found, pools = sites(problem)
    own = {site.processors[0]: [pools[each].lanes for each in site.pools] for site in found}
    return [own.get(number, []) for number in range(len(problem.processors))]


def _latest(free: Sequence[float], lanes: Sequence[int], ready: float) -> int:
    """Of lanes that are free by then the one that was last; or else the first to be free."""
    best = lanes[0]
    for lane in lanes:
        at, other = free[lane], free[best]
        if (at <= ready and (other > ready or at > other)) or ready < at < other:
            best = lane
    return best
