"""The clock in one loop where processors stand still while values travel; an order says when they are sent, too.

order    a  ~v  b  c  r        ~v: value v is sent now, to wherever it is read; without it, when r has its turn
         a  vx  b  vy  c       vx, vy: to x now, and to y later, for b does not wait until y has it, too

p0  | a |=v=|   b   |          what is read last may be sent first, and between any two tasks: no order of tasks alone
p1      |=v=| c |   r  |       says so, and schedules of fifteen tasks were up to a fifth longer for it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partitioner.ir.problem import Problem
from partitioner.planner.latency.states import State, Times
from partitioner.planner.resources import common_gap, gap_of_two
from partitioner.planner.timing import Ahead


class Standing:
    """Times orders with sends in them, as the clock does if it is given `apart`.

    Args:
        problem: in which processors stand still, lanes share nothing and issue for themselves.
        rest: seconds from the end of each task to the end of all, at least.
    """

    def __init__(self, problem: Problem, rest: Sequence[float]) -> None:
        self.rest = rest
        self.problem, self.places = problem, len(problem.processors)
        self.routes = [problem.routes.get((one, other), ()) for one in range(self.places) for other in range(self.places)]
        self.held = [[lane for lane, home in enumerate(problem.lanes) if home in each.ends] for each in problem.channels]
        self.handoff = [each.handoff for each in problem.processors]
        self.readers = [sorted(set(each)) for each in problem.readers]
        self.lengths = [[channel.seconds(size) for channel in problem.channels] for _, size in problem.values]

    def run(self, state: State, order: Sequence[int], times: Times) -> None:
        """Go on with an order, by the same steps as the clock."""
        start, end, wait, cause, lanes = times
        problem, busy, arrived = self.problem, state.busy, state.arrived
        home, table, before = problem.lanes, problem.seconds, problem.before
        rest, least, handoff, values = self.rest, state.least, self.handoff, len(self.readers)
        for task in order:
            if task < 0:
                only, value = divmod(~task, values)
                from_, made = home[lanes[problem.values[value][0]]], end[problem.values[value][0]]
                for reader in self.readers[value]:
                    to = home[lanes[reader]]
                    if to != from_ and only in (0, to + 1) and (value, ~to) not in arrived:
                        self.passed(value, from_, to, made, state)
                continue
            lane = lanes[task]
            here = home[lane]
            hand = handoff[here]
            ready, last = 0.0 if lane == 0 else hand, -1
            for source, value in before[task]:
                at, there = end[source], lanes[source]
                if there != lane:
                    if value >= 0 and home[there] != here:
                        come = arrived.get((value, ~here))
                        at = self.passed(value, home[there], here, at, state) if come is None else come
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

    def items(self, values: Iterable[int]) -> set[int]:
        """All that stands in orders for these values."""
        return {self.send(value, there) for value in values for there in range(-1, self.places)}

    def send(self, value: int, there: int = -1) -> int:
        """What stands in an order for a value that is sent to a processor; -1: to all on which it is read, one by one."""
        return ~(value + len(self.readers) * (there + 1))

    def sent(self, item: int) -> tuple[int, int]:
        """The value, and to which processor it is sent; -1: to all."""
        there, value = divmod(~item, len(self.readers))
        return value, there - 1

    def targets(self, value: int, lanes: Sequence[int]) -> list[int]:
        """The processors on which a value is read, but for its maker's."""
        problem, home = self.problem, self.problem.lanes
        here = home[lanes[problem.values[value][0]]]
        found = dict.fromkeys(home[lanes[reader]] for reader in self.readers[value])
        return [there for there in found if there != here]

    def passed(self, value: int, here: int, there: int, at: float, state: State) -> float:
        """When a value that is made at some time is there; who has part in its passages stands still meanwhile."""
        arrived, busy, lengths = state.arrived, state.busy, self.lengths[value]
        for channel in self.routes[here * self.places + there]:
            known = arrived.get((value, channel))
            if known is None:
                length = lengths[channel]
                if not length:
                    continue
                held = self.held[channel]
                if len(held) == 2:
                    one, other = busy[held[0]], busy[held[1]]
                    begin = gap_of_two(one, other, at, length)
                    known = arrived[value, channel] = begin + length
                    one.take(begin, known)
                    other.take(begin, known)
                else:
                    lines = [busy[lane] for lane in held] or [state.channels[channel]]  # whoever holds lanes has the channel
                    begin = common_gap(lines, at, length)
                    known = arrived[value, channel] = begin + length
                    for line in lines:
                        line.take(begin, known)
            if known > at:
                at = known
        arrived[value, ~there] = at
        return at

    def joined(self, order: Sequence[int], ahead: Ahead, lanes: Sequence[int]) -> list[int]:
        """An order with the sends of ``ahead`` where they are; all others are when they are read."""
        problem, found = self.problem, list[int]()
        for task in order:
            for value, channel in ahead.get(task, ()):
                here = problem.lanes[lanes[problem.values[value][0]]]
                found += [self.send(value, end) for end in problem.channels[channel].ends if end != here]
            found.append(task)
        return found

    def apart(self, order: Sequence[int], lanes: Sequence[int]) -> tuple[list[int], Ahead]:
        """The order of the tasks, and what goes over channels ahead of each."""
        home, ahead, early = self.problem.lanes, dict[int, list[tuple[int, int]]](), list[tuple[int, int]]()
        for item in order:
            if item >= 0:
                if early:
                    ahead[item], early = early, []
                continue
            value, only = self.sent(item)
            here = home[lanes[self.problem.values[value][0]]]
            for there in self.targets(value, lanes):
                if only in (-1, there):
                    early += [(value, channel) for channel in self.routes[here * self.places + there]]
        return [item for item in order if item >= 0], ahead
