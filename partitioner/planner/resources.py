"""What is taken for a while: a lane or a channel, which is free or not; what lanes have in common, of which a part is free."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import cycle

MOST_GAPS = 32
"""Gaps that are looked at before a task goes to the end of its lane: keeps placing linear in the number of tasks."""

MOST_IN_COMMON = 32 * MOST_GAPS
"""Likewise, of several resources that must be free at once."""


class Busy:
    """The intervals in which a resource is taken. Those that touch are one; one of no length is a point that none may cross."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []

    def copy(self) -> Busy:
        """Another one that is taken at the same times."""
        other = Busy()
        if self.ends:
            other.starts, other.ends = self.starts[:], self.ends[:]
        return other

    def gap(self, ready: float, seconds: float) -> float:
        """The earliest start, not before ``ready``, of ``seconds`` in which the resource is free."""
        starts, ends = self.starts, self.ends
        if not ends or ready >= ends[-1]:
            return ready
        first = bisect_right(ends, ready)
        for number in range(first, len(ends))[:MOST_GAPS]:
            if ready + seconds <= starts[number]:
                return ready
            ready = ends[number]
        return ends[-1]

    def fill(self, ready: float, seconds: float) -> float:
        """Take the first ``seconds`` that are free, not before ``ready``; their start."""
        ends = self.ends
        start = self.gap(ready, seconds) if ends and ready < ends[-1] else ready
        if ends and seconds and start == ends[-1]:
            ends[-1] = start + seconds
        else:
            self.take(start, start + seconds)
        return start

    def take(self, start: float, end: float) -> None:
        """Note that the resource is taken from ``start`` to ``end``."""
        starts, ends = self.starts, self.ends
        if end <= start:
            place = bisect_right(starts, start)
            if not place or ends[place - 1] < start:
                starts.insert(place, start)
                ends.insert(place, start)
            return
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            return
        if start == ends[-1]:
            ends[-1] = end
            return
        place = bisect_right(starts, start)
        if place and ends[place - 1] == start:
            ends[place - 1] = end
            place -= 1
        else:
            starts.insert(place, start)
            ends.insert(place, end)
        if place + 1 < len(starts) and ends[place] >= starts[place + 1]:
            ends[place] = max(ends[place], ends.pop(place + 1))
            starts.pop(place + 1)


def common_gap(lines: Sequence[Busy], ready: float, seconds: float) -> float:
    """The earliest start, not before ``ready``, of ``seconds`` in which several resources are free at once.

    >>> one, other = Busy(), Busy()
    >>> one.take(0.0, 2.0), other.take(3.0, 4.0)
    (None, None)
    >>> common_gap([one, other], 0.0, 1.0), common_gap([one, other], 0.0, 2.0)
    (2.0, 4.0)
    """
    start, agreed, looked = ready, 0, 0
    places = [bisect_right(line.ends, ready) for line in lines]
    for number in cycle(range(len(lines))):  # one after the other, until all agree
        starts, ends, before = lines[number].starts, lines[number].ends, start
        place = len(ends)
        for here in range(places[number], place):
            end = ends[here]
            if end > start:
                if starts[here] >= start + seconds:
                    place = here
                    break
                start = end
        looked, places[number] = looked + place - places[number], place
        agreed = agreed + 1 if start == before else 1
        if agreed == len(lines):
            return start
        if looked > MOST_IN_COMMON:
            return max([start, *(line.ends[-1] for line in lines if line.ends)])
    return start


def gap_of_two(one: Busy, other: Busy, ready: float, seconds: float) -> float:
    """Likewise, of two, which searches ask for ten thousand times."""
    ends, others = one.ends, other.ends
    if (not ends or ends[-1] <= ready) and (not others or others[-1] <= ready):
        return ready
    starts, beside, start = one.starts, other.starts, ready
    here, there, count, most = bisect_right(ends, ready), bisect_right(others, ready), len(ends), len(others)
    enough = here + there + MOST_IN_COMMON
    while True:
        while here < count:
            end = ends[here]
            if end > start:
                if starts[here] >= start + seconds:
                    break
                start = end
            here += 1
        before = start
        while there < most:
            end = others[there]
            if end > start:
                if beside[there] >= start + seconds:
                    break
                start = end
            there += 1
        if here + there > enough:
            return common_gap([one, other], ready, seconds)
        if start == before:
            return start


class Shares:
    """What the lanes of one device have in common, such as its multiprocessors, and which part of it is taken when."""

    __slots__ = ("ends", "taken")

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.taken: list[tuple[float, float, float]] = []

    def take(self, start: float, end: float, share: float) -> None:
        """Note that a part, 0 to 1, is taken from ``start`` to ``end``."""
        place = bisect_right(self.ends, end)
        self.ends.insert(place, end)
        self.taken.insert(place, (start, end, share))

    def later(self, start: float, end: float, share: float) -> float:
        """The end of something beside which there is no room between ``start`` and ``end``; ``start`` if there is room."""
        beside = [each for each in self.taken[bisect_right(self.ends, start) :] if each[0] < end]
        for instant in [start, *(each[0] for each in beside if each[0] > start)]:
            running = [each for each in beside if each[0] <= instant < each[1]]
            if running and sum(each[2] for each in running) + share > 1.0 + 1e-9:
                return min(each[1] for each in running)
        return start
