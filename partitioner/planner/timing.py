"""The one clock: when each task of a problem starts and ends, and how loaded each processor is. Every second comes from here.

Lanes, channels and the issuing thread are resources. A task starts when its lane is free, the host has issued it and all that
it reads has arrived; a value travels as soon as it is made and a channel has room, in the order in which readers are placed:

    gpu0   | t0 |   t1   |              t1 computes while t0's value travels (`overlap`)
    link        | v0 |  | v1 |
    gpu1             | t2 |  | t3 |     t3 waits for v1, and v1 for the end of t1

Who wants another order on the channels says so: `timed` takes the passages that come ahead of a task. Where values are fetched
(`Problem.fetched`), as by a lowered program, the passage is the first reader's own business, and its lane does nothing else.

Resources remember when they are taken, not only until when, so that a short task may go into a gap before a long one
(insertion, as in HEFT). Lanes of one accelerator share its multiprocessors: tasks run at once whose shares fit together, and
others wait, which is as long as both would take by turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.resources import Busy, Shares, common_gap

Ahead = Mapping[int, Sequence[tuple[int, int]]]
"""By task, what goes over channels before that task has its turn: ``(value, channel)``, in order."""

Passage = tuple[int, int, float, float]
"""A value, a channel, when the value is at its end, and the seconds that this takes."""

Turn = tuple[float, float, Sequence[Passage] | None]
"""When a task would start and end on a lane, and what would pass channels for it; None: placing it is to find that."""


class Trial:
    """What asking when a task could start has put on channels, of which nothing is kept."""

    __slots__ = ("fetched", "passages", "until")

    def __init__(self) -> None:
        self.until: dict[int, float] = {}
        self.passages: list[Passage] = []
        self.fetched = 0.0


class Clock:
    """When every resource is taken, while tasks are placed one after the other; each after all that it waits for.

    Args:
        problem: what is placed.
        threads: of each task, where it is not a lane's share; by task number.
    """

    def __init__(self, problem: Problem, threads: Sequence[int] = ()) -> None:
        self.problem, count = problem, len(problem.tasks)
        self.start, self.end, self.lane = [0.0] * count, [0.0] * count, [-1] * count
        self.turn, self.placed = [0] * count, 0
        self.lanes = [Busy() for _ in problem.lanes]
        self.channels = [Busy() for _ in problem.channels]
        self.arrived: dict[tuple[int, int], float] = {}
        self.fetcher: dict[tuple[int, int], int] = {}
        self.given: dict[int, int] = {}
        self.issuer = 0.0
        self._home = problem.lanes
        self._handoff = [each.handoff for each in problem.processors]
        self._threads = threads
        self._issue = [problem.kinds[each.kind].issue for each in problem.processors]
        self._share = [problem.kinds[each.kind].share if each.lanes > 1 else None for each in problem.processors]
        self._shares = [Shares() for _ in problem.processors]
        self._holds: dict[int, list[Busy]] = {}

    @property
    def makespan(self) -> float:
        """When the last task that was placed ends, and the first lane's thread knows of it."""
        after, back = self.problem.after, self.problem.back
        return max(
            (
                end if lane == 0 or after[task] else end + back
                for task, (end, lane) in enumerate(zip(self.end, self.lane, strict=True))
                if lane >= 0
            ),
            default=0.0,
        )

    def seconds(self, task: int, processor: int) -> float:
        """Seconds of a task once it runs."""
        if self._threads and self._threads[task]:
            return self.problem.seconds_of(processor, self._threads[task])[task]
        return self.problem.seconds[processor][task]

    def when(self, task: int, lane: int) -> Turn:
        """When a task would start and end on a lane. Its predecessors have been placed."""
        trial = Trial()
        start, end = self._fit(task, lane, self._ready(task, lane, trial))
        alone = len(trial.until) if self.problem.overlap else 1
        return start, end, None if self.problem.fetched or len(trial.passages) > alone else trial.passages

    def place(self, task: int, lane: int, turn: Turn | None = None) -> float:
        """Put a task on a lane, and what it reads on the channels; when it ends.

        Args:
            task: what is placed.
            lane: where.
            turn: what ``when`` has said of both, if nothing has been placed since.
        """
        start, end, passages = turn or (0.0, 0.0, None)
        if passages is None:
            start, end = self._fit(task, lane, self._ready(task, lane))
        else:
            for passage in passages:
                self._pass(*passage)
        processor = self._home[lane]
        self.start[task], self.end[task], self.lane[task] = start, end, lane
        self.turn[task] = self.placed = self.placed + 1
        self.lanes[lane].take(start, end)
        issue, share = self._issue[processor], self._share[processor]
        if issue is not None:
            self.issuer += issue[task]
        if share is not None:
            self._shares[processor].take(start, end, share[task])
        return end

    def carry(self, value: int, channel: int) -> None:
        """Put a value on a channel, and on those before it on its way, for readers that have not been placed yet."""
        maker = self.problem.values[value][0]
        here = self._home[self.lane[maker]]
        for (source, _), route in self.problem.routes.items():
            if source == here and channel in route:
                self._carry(value, route[: route.index(channel) + 1], self.end[maker], None)
                return

    def _fit(self, task: int, lane: int, ready: float) -> tuple[float, float]:
        processor = self._home[lane]
        seconds, issue, share = self.seconds(task, processor), self._issue[processor], self._share[processor]
        if issue is None and share is None:
            start = self.lanes[lane].gap(ready, seconds)
            return start, start + seconds
        issued = 0.0 if issue is None else self.issuer + issue[task]
        start = ready if issue is None else max(ready, self.issuer)
        while True:
            needed = max(seconds, issued - start)
            later = self.lanes[lane].gap(start, needed)
            if share is not None:
                later = self._shares[processor].later(later, later + needed, share[task])
            if later <= start:
                return start, start + needed
            start = later

    def _ready(self, task: int, lane: int, trial: Trial | None = None) -> float:
        """When all that a task waits for is on its lane."""
        problem, here = self.problem, self._home[lane]
        handoff, placed, ended, home = self._handoff[here], self.lane, self.end, self._home
        ready = 0.0 if lane == 0 else handoff
        far: list[tuple[int, int]] = []
        for number in problem.given_to.get(task, ()) if problem.fetched else ():
            there = self.given.get(number, here)
            if there != here:
                ready = max(ready, self._fetch(~number, there, lane, ready, trial))
            elif trial is None:
                self.given[number] = here
        for source, value in problem.before[task]:
            at, end = placed[source], ended[source]
            if at == lane:
                arrival = end
            elif value == ISSUE and self._issue[here] is not None:
                arrival = self.start[source]
            elif value < 0 or home[at] == here:
                arrival = end + handoff
            elif problem.fetched:
                far.append((source, value))
                continue
            else:
                route = problem.routes.get((home[at], here), ())
                arrival = self._carry(value, route, end, trial) + handoff
            if arrival > ready:
                ready = arrival
        for source, value in sorted(far, key=lambda each: self.turn[each[0]]) if len(far) > 1 else far:
            from_ = home[placed[source]]
            ready = max(ready, self._fetch(value, from_, lane, ended[source] + handoff, trial))
        return ready

    def _carry(self, value: int, route: Sequence[int], ready: float, trial: Trial | None) -> float:
        """When a value that is made at ``ready`` is at the end of a route."""
        problem, arrived = self.problem, self.arrived
        size = problem.values[value][1]
        for channel in route:
            known = arrived.get((value, channel))
            if known is None:
                seconds = problem.channels[channel].seconds(size)
                if not seconds:  # it waits for nothing, and keeps nothing waiting
                    continue
                if trial is None:
                    known = self._gap(channel, ready, seconds) + seconds
                    self._pass(value, channel, known, seconds)
                else:
                    known = self._gap(channel, max(ready, trial.until.get(channel, 0.0)), seconds) + seconds
                    trial.until[channel] = known
                    trial.passages.append((value, channel, known, seconds))
            if known > ready:
                ready = known
        return ready

    def _pass(self, value: int, channel: int, arrival: float, seconds: float) -> None:
        """Note that a value passes a channel, where it is at ``arrival``."""
        self.arrived[value, channel] = arrival
        for busy in self._held(channel):
            busy.take(arrival - seconds, arrival)

    def _fetch(self, value: int, here: int, lane: int, ready: float, trial: Trial | None) -> float:
        """When a value is there for ``lane``, which copies it after all that it has had to do, or for which another lane has.

        ``value``: its number, or the complement of a given one's.
        """
        there, busy = self._home[lane], self.lanes[lane]
        for channel in self.problem.routes.get((here, there), ()):
            known = self.arrived.get((value, channel))
            if known is not None:
                near = self.fetcher[value, channel] == lane
                ready = max(ready, known if near else known + self.problem.processors[there].handoff)
                continue
            size = self.problem.values[value][1] if value >= 0 else self.problem.given[~value][0]
            seconds = self.problem.channels[channel].seconds(size)
            free = max(busy.ends[-1] if busy.ends else 0.0, trial.fetched if trial else 0.0)
            start = self.channels[channel].gap(max(ready, free), seconds)
            ready = start + seconds
            if trial is None:
                self.arrived[value, channel], self.fetcher[value, channel] = ready, lane
                self.channels[channel].take(start, ready)
                busy.take(start, ready)
            else:
                trial.fetched = ready
        return ready

    def _held(self, channel: int) -> list[Busy]:
        """What a passage takes: the channel and, where nothing overlaps, every lane of the processors at its ends."""
        if channel not in self._holds:
            ends = () if self.problem.overlap else self.problem.channels[channel].ends
            lanes = (busy for busy, home in zip(self.lanes, self._home, strict=True) if home in ends)
            self._holds[channel] = [self.channels[channel], *lanes]
        return self._holds[channel]

    def _gap(self, channel: int, ready: float, seconds: float) -> float:
        if self.problem.overlap:
            return self.channels[channel].gap(ready, seconds)
        return common_gap(self._held(channel), ready, seconds)


def timed(
    problem: Problem, lane: Sequence[int], order: Iterable[int], threads: Sequence[int] = (), ahead: Ahead | None = None
) -> Clock:
    """The clock after all tasks have been placed on given lanes, in an order that respects every edge.

    Args:
        problem: what is placed.
        lane: of each task.
        order: of the tasks.
        threads: of each task, where it is not a lane's share.
        ahead: what travels before tasks have their turn; all else travels when its first reader is placed.
    """
    clock, ahead = Clock(problem, threads), {} if ahead is None or problem.fetched else ahead
    for task in order:
        for value, channel in ahead.get(task, ()):
            clock.carry(value, channel)
        clock.place(task, lane[task])
    return clock


# Throughput -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Seconds in which a processor computes, sends and receives, for each unit of work that goes through all of them."""

    compute: float = 0.0
    sends: float = 0.0
    receives: float = 0.0

    def seconds(self, overlap: bool) -> float:
        """What keeps the next unit of work waiting."""
        if overlap:
            return max(self.compute, self.sends, self.receives)
        return self.compute + self.sends + self.receives


def loads(problem: Problem, processor: Sequence[int]) -> list[Load]:
    """The load of each processor, when each task runs on the one given.

    A value passes each channel once, whoever reads it behind that channel; both ends of the channel take part.
    """
    count = len(problem.processors)
    compute, sends, receives = [0.0] * count, [0.0] * count, [0.0] * count
    for task, home in enumerate(processor):
        compute[home] += problem.seconds[home][task]
    for (maker, size), readers in zip(problem.values, problem.readers, strict=True):
        home = processor[maker]
        passed: set[int] = set()
        for there in {processor[reader] for reader in readers} - {home}:
            for channel in problem.routes.get((home, there), ()):
                if channel not in passed:
                    passed.add(channel)
                    seconds = problem.channels[channel].seconds(size)
                    for end in problem.channels[channel].ends:
                        if end == home:
                            sends[end] += seconds
                        else:
                            receives[end] += seconds
    return [
        Load(compute[number] / each.lanes, sends[number], receives[number]) for number, each in enumerate(problem.processors)
    ]


def largest_load(problem: Problem, processor: Sequence[int]) -> float:
    """What the throughput objective makes small: the load of the busiest processor; infinite if a task cannot run."""
    return max((load.seconds(problem.overlap) for load in loads(problem, processor)), default=0.0)
