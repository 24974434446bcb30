"""What is taken until when after the first tasks of an order: orders that begin alike go on from there.

now      a b c d | e f g h | i j k      marks after d and h
a move   a b c d | e f h g | i j k      timed from d onwards
"""

from __future__ import annotations

from dataclasses import dataclass

from partitioner.planner.resources import Busy

Times = tuple[list[float], list[float], list[float], list[int], list[int]]
"""By task: its start, its end, when all that it waits for is there, the predecessor that is there last, or -1, and its lane."""

STEP = 8
"""Tasks from one mark to the next, at least."""


@dataclass(slots=True)
class State:
    """What is taken until when, after the first tasks of an order.

    Args:
        busy: each lane.
        channels: each channel.
        arrived: when values are behind channels, by value and channel, and on processors, by value and the complement of those.
        free: by pool, when its lanes are free, and their numbers; of lanes that cannot be told apart.
        least: seconds that the schedule takes at least, whatever comes.
    """

    busy: list[Busy]
    channels: list[Busy]
    arrived: dict[tuple[int, int], float]
    free: list[list[tuple[float, int]]]
    least: float = 0.0

    def copy(self) -> State:
        """Another one that goes on by itself."""
        busy, channels = [each.copy() for each in self.busy], [each.copy() for each in self.channels]
        return State(busy, channels, self.arrived.copy(), [line[:] for line in self.free], self.least)

    def last(self) -> float:
        """When lanes are through, on average."""
        if self.free:
            ends = [at for line in self.free for at, _ in line]
        else:
            ends = [each.ends[-1] if each.ends else 0.0 for each in self.busy]
        return sum(ends) / len(ends)
