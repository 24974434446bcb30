"""When everything happens, for CP-SAT: intervals of tasks, transfers and issues, on lanes, channels and the issuing thread.

    start[t], end[t]   of each task; on[t, k]: it has a lane of pool k
    passes[v, c]       value v goes over channel c; begins[v, c] says when

Times are whole numbers of a unit. Where the unit does not divide every duration, durations are rounded down: the sequence of an
optimal schedule then has a makespan in units that is no larger than its true one, so what CP-SAT proves stays true.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from math import ceil, floor
from typing import Any

from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.latency.model import Places
from partitioner.planner.latency.sites import sites

FINEST = 100_000_000
"""Units in a schedule, where no round unit divides every duration."""


def unit_of(times: Iterable[float], end: float) -> tuple[float, bool]:
    """A unit for schedules of about ``end`` seconds; and whether it divides all ``times``.

    >>> unit_of([1.5, 2.0], 20.0)
    (0.5, True)
    >>> unit_of([1 / 3, 2 ** 0.5], 20.0)
    (2e-07, False)
    """
    found = {each for each in times if each > 0}
    for power in range(3, -10, -1):
        for part in (10.0**power, 10.0**power / 2):
            if end / part <= 1e9 and all(abs(each / part - round(each / part)) <= 1e-9 * each / part for each in found):
                return part, True
    return end / FINEST, False


class Schedule(Places):
    """The whole model; what is known of an answer makes it smaller.

    Args:
        problem: what is scheduled.
        end: seconds of a known answer.
        least: seconds that no answer beats.
    """

    def __init__(self, problem: Problem, end: float, least: float) -> None:
        found, self.pools = sites(problem)
        super().__init__(problem, found)
        self.unit, self.exact = unit_of(_times(problem), end)
        self.most = ceil(end / self.unit * (1 + 1e-9)) + 1
        lowest = ceil(least / self.unit * (1 - 1e-9)) if self.exact else self.ticks(least * (1 - 1e-9))
        self.makespan = self.cp.new_int_var(min(lowest, self.most), self.most, "makespan")
        self.busy: dict[int, list[tuple[Any, int]]] = defaultdict(list)
        self.start = [self.cp.new_int_var(0, self.most, f"start {task}") for task in range(len(problem.tasks))]
        self.end: list[Any] = []
        self.on: dict[tuple[int, int], Any] = {}
        self.begins: dict[tuple[int, int], Any] = {}
        self.pass_of: dict[tuple[int, int], Any] = {}
        for task in range(len(problem.tasks)):
            self._task(task)
        self._edges()
        for value in range(len(problem.values)):
            self._value(value)
        self._channels()
        self._issued()
        self._pools()
        self.cp.minimize(self.makespan)

    def ticks(self, seconds: float) -> int:
        """Seconds in units: as they are where the unit divides them, else rounded down; no more than do not fit anyway.

        A task may take a picosecond on one kind and days on another, which in units of the best answer is no 64-bit number.
        """
        most = self.most + 1
        if seconds >= most * self.unit:
            return most
        return round(seconds / self.unit) if self.exact else floor(seconds / self.unit)

    def issue(self, pool: int) -> Any:
        """Seconds of issue of each task on a pool's processors; ``None`` where its lanes issue for themselves."""
        return self.problem.kinds[self.problem.processors[self._home(pool)].kind].issue

    def _home(self, pool: int) -> int:
        return self.problem.lanes[self.pools[pool].lanes[0]]

    def _task(self, task: int) -> None:
        """A task's interval on each pool that it can have, of which it has one."""
        problem, cp, last = self.problem, self.cp, not self.problem.after[task]
        end = cp.new_int_var(0, self.most, f"end {task}")
        self.end.append(end)
        for site in self.ways[problem.group_of[task]]:
            pools = self.sites[site].pools
            here = [self.where(task, site) if len(pools) == 1 else cp.new_bool_var(f"{task} on {each}") for each in pools]
            if len(pools) > 1:
                cp.add(sum(here) == self.where(task, site))
            for number, literal in zip(pools, here, strict=True):
                pool = self.pools[number]
                self.on[task, number] = literal
                self.busy[number].append((self._interval(task, number, literal), task))
                wait = 0 if pool.first else self.ticks(pool.wait)
                if wait:
                    cp.add(self.start[task] >= wait).only_enforce_if(literal)
                if last and not pool.first and self.ticks(problem.back):
                    cp.add(self.makespan >= end + self.ticks(problem.back)).only_enforce_if(literal)
        cp.add(self.makespan >= end)

    def _interval(self, task: int, pool: int, literal: Any) -> Any:
        """A task on a pool; its end has a constraint of its own.

        Of intervals that share a variable for their end, CP-SAT 9.15 takes some to exclude each other that do not.
        """
        start, end, name = self.start[task], self.end[task], f"{task} on {pool}"
        size = self.ticks(self.problem.seconds[self._home(pool)][task])
        if self.issue(pool) is not None:
            length = self.cp.new_int_var(size, self.most, f"length {name}")
            return self.cp.new_optional_interval_var(start, length, end, literal, name)
        self.cp.add(end == start + size).only_enforce_if(literal)
        return self.cp.new_optional_fixed_size_interval_var(start, size, literal, name)

    def _edges(self) -> None:
        """A task starts after what it waits for; on another lane, a hand-off later."""
        for source, target, value in set(self.problem.edges):
            if value != ISSUE:
                self.cp.add(self.start[target] >= self.end[source])
            for number, pool in enumerate(self.pools):
                literal = self.on.get((target, number))
                if literal is None:
                    continue
                near = self.on.get((source, number), 0)
                if value == ISSUE and self.issue(number) is not None:
                    self.cp.add(self.start[target] >= self.start[source]).only_enforce_if(literal)
                    if len(pool.lanes) == 1 and (source, number) in self.on:
                        self.cp.add(self.start[target] >= self.end[source]).only_enforce_if(literal, near)
                elif value == ISSUE or self.ticks(pool.wait):
                    after = self.end[source] + self.ticks(pool.wait)
                    apart = [literal] if (source, number) not in self.on else [literal, ~near]
                    self.cp.add(self.start[target] >= after).only_enforce_if(*apart)
                    if value == ISSUE:
                        self.cp.add(self.start[target] >= self.end[source]).only_enforce_if(literal)

    def _value(self, value: int) -> None:
        """A value's passage over each channel that it needs, where its maker and its readers are apart."""
        maker = self.problem.values[value][0]
        group = self.problem.group_of
        readers = [reader for reader in set(self.problem.readers[value]) if group[reader] != group[maker]]
        for (here, there), route in self.problem.routes.items():
            source, target = self._site(here), self._site(there)
            made = self.at.get((group[maker], source))
            reading = {group[reader]: self.at.get((group[reader], target)) for reader in readers}
            if made is None or not route or all(each is None for each in reading.values()):
                continue
            for channel in route:
                self._passage(value, channel, maker)
            for literal in [each for each in reading.values() if each is not None]:
                for channel in route:
                    self.cp.add_bool_or(~made, ~literal, self.pass_of[value, channel])
                for one, other in pairwise(route):
                    if self._only_way(here, one, other):
                        arrives = self.begins[value, one] + self._length(value, one)
                        self.cp.add(self.begins[value, other] >= arrives).only_enforce_if(made, literal)
            for reader in readers:
                wanted = reading[group[reader]]
                if wanted is not None:
                    hand = self.ticks(self.problem.processors[there].handoff)
                    for channel in route:
                        arrives = self.begins[value, channel] + self._length(value, channel) + hand
                        self.cp.add(self.start[reader] >= arrives).only_enforce_if(made, wanted)

    def _site(self, processor: int) -> int:
        return next(number for number, site in enumerate(self.sites) if processor in site.processors)

    def _only_way(self, here: int, one: int, other: int) -> bool:
        """Whether what leaves ``here`` over channel ``other`` has always come over ``one`` just before."""
        ways = [route for (source, _), route in self.problem.routes.items() if source == here and other in route]
        return all(other in route[1:] and route[route.index(other) - 1] == one for route in ways)

    def _length(self, value: int, channel: int) -> int:
        return self.ticks(self.problem.channels[channel].seconds(self.problem.values[value][1]))

    def _passage(self, value: int, channel: int, maker: int) -> None:
        if (value, channel) not in self.begins:
            self.begins[value, channel] = begin = self.cp.new_int_var(0, self.most, f"{value} over {channel}")
            self.pass_of[value, channel] = self.cp.new_bool_var(f"{value} passes {channel}")
            self.cp.add(begin >= self.end[maker])

    def _channels(self) -> None:
        """A channel carries one value at a time; where nothing overlaps, processors at its ends do nothing meanwhile."""
        by_channel: dict[int, list[Any]] = defaultdict(list)
        for (value, channel), begin in self.begins.items():
            length = self._length(value, channel)
            if length:
                present = self.pass_of[value, channel]
                interval = self.cp.new_optional_fixed_size_interval_var(begin, length, present, f"{value} on {channel}")
                by_channel[channel].append(interval)
                ends = self.problem.channels[channel].ends if self.problem.waits else ()
                for number in range(len(self.pools)):
                    if self._home(number) in ends:
                        self.busy[number].append((interval, -1))
        for intervals in by_channel.values():
            self.cp.add_no_overlap(intervals)

    def _issued(self) -> None:
        """The host issues one task at a time; a task starts after its issue has begun and ends after it has ended."""
        intervals = []
        for (task, number), literal in self.on.items():
            issue = self.issue(number)
            if issue is not None:
                begin, length = self.cp.new_int_var(0, self.most, f"issue {task}"), self.ticks(issue[task])
                self.cp.add(self.start[task] >= begin).only_enforce_if(literal)
                self.cp.add(self.end[task] >= begin + length).only_enforce_if(literal)
                intervals.append(self.cp.new_optional_fixed_size_interval_var(begin, length, literal, f"issue {task}"))
        if intervals:
            self.cp.add_no_overlap(intervals)

    def _pools(self) -> None:
        """A pool runs as many tasks at once as it has lanes; lanes of one processor share what they share."""
        for number, intervals in self.busy.items():
            lanes = len(self.pools[number].lanes)
            if lanes == 1:
                self.cp.add_no_overlap(interval for interval, _ in intervals)
            else:
                demands = [1 if task >= 0 else lanes for _, task in intervals]
                self.cp.add_cumulative([interval for interval, _ in intervals], demands, lanes)
        for site in self.sites:
            each = self.problem.processors[site.processors[0]]
            share = self.problem.kinds[each.kind].share if each.lanes > 1 else None
            if share is not None:
                both = [pair for number in site.pools for pair in self.busy[number] if pair[1] >= 0]
                parts = [floor(10_000 * share[task]) for _, task in both]
                self.cp.add_cumulative([interval for interval, _ in both], parts, 10_000)


def _times(problem: Problem) -> Iterable[float]:
    """Every duration that a schedule can be made of."""
    for number, each in enumerate(problem.processors):
        yield each.handoff
        yield from (seconds for seconds in problem.seconds[number] if seconds < float("inf"))
        yield from problem.kinds[each.kind].issue or ()
    for channel in problem.channels:
        yield from (channel.seconds(size) for _, size in problem.values)
