"""When each rank does what: the order of a schedule played through, with the seconds of stages that need not be even.

    rank 0   F F F F . . . . . . . B . . B . . B . . B
    rank 1     F F B B F . . .                                 a dot is a wait: the bubble

A rank does one thing after the other. A value leaves as soon as it is made, while its rank goes on; a channel between two ranks
carries one value at a time, each way. Copies of a stage exchange its gradients over a channel of their own, one stage of a rank
after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partitioner.distributed.pipeline.order import Action, Order

ByStage = Sequence[float] | Mapping[int, float]
"""Something of each stage."""


@dataclass(frozen=True)
class StageTimes:
    """The seconds of one stage.

    Args:
        forward: of one microbatch.
        backward: of one microbatch, for inputs and weights together.
        sent: until what it passes has reached the next stage; 0 where that is on the same rank.
        returned: likewise for its inputs' gradients, back to the stage before.
        gathered: in which copies gather its parameters, before its first forward; 0 where each has them all.
        reduced: in which copies sum its gradients.
        tail: the part of that which cannot begin before its last backward ends, where the rest may; ``reduced`` if none may.
        again: in which a forward is run again before a backward, or before each half of one; 0 where all was kept.
    """

    forward: float
    backward: float
    sent: float = 0.0
    returned: float = 0.0
    gathered: float = 0.0
    reduced: float = 0.0
    tail: float = 0.0
    again: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """What comes of it.

    Args:
        step: seconds until all is done.
        span: seconds until the last rank has computed everything, before gradients that are still on their way.
        busy: seconds that each rank computes.
    """

    step: float
    span: float
    busy: tuple[float, ...]

    @property
    def bubble(self) -> float:
        """The part of the span in which ranks wait, on average.

        >>> Timeline(step=5.0, span=4.0, busy=(3.0, 3.0)).bubble
        0.25
        """
        return 1 - sum(self.busy) / (len(self.busy) * self.span) if self.span else 0.0


def played(order: Order, times: Sequence[StageTimes]) -> Timeline:
    """Play an order through.

    Args:
        order: what each rank does.
        times: of each stage.

    Example:
        >>> from partitioner.distributed.pipeline.order import order_of
        >>> found = played(order_of("1f1b", 2, 1, 3), [StageTimes(1.0, 2.0)] * 2)
        >>> found.step, found.bubble  # (3 + 2 - 1) times 3 seconds, of which 1 in 4 is waiting
        (12.0, 0.25)
    """
    clock = _Clock(order, times)
    waiting = set(range(len(order)))
    while waiting:
        moved = [rank for rank in sorted(waiting) if clock.advance(rank)]
        assert moved, f"ranks wait for each other: {[str(order[rank][clock.place[rank]]) for rank in sorted(waiting)]}"
        waiting = {rank for rank in waiting if clock.place[rank] < len(order[rank])}
    return Timeline(max(*clock.free, *clock.exchanged), max(clock.free), tuple(clock.busy))


class _Clock:
    """Goes through an order.

    Attributes:
        place: how many actions each rank has done.
        free, busy: until when each rank computes, and for how long it did.
        exchanged: until when each rank's channel to its copies is taken.
        arrived: when what an action of another stage gives has reached an action that needs it, by that one.
        channels: until when the channel between two ranks is taken, by sender and receiver.
    """

    def __init__(self, order: Order, times: Sequence[StageTimes]) -> None:
        self.order, self.times = order, times
        self.place = [0] * len(order)
        self.free, self.busy, self.exchanged = ([0.0] * len(order) for _ in range(3))
        self.holder = {action.stage: rank for rank, actions in enumerate(order) for action in actions}
        self.left = dict.fromkeys(self.holder, 0)
        for action in (action for actions in order for action in actions):
            self.left[action.stage] += action.what in ("B", "W")
        self.arrived: dict[tuple[int, str, int], float] = {}
        self.channels: dict[tuple[int, int], float] = {}
        self.gathered: dict[int, float] = {}

    def advance(self, rank: int) -> bool:
        """Let a rank do what it can; whether that was anything."""
        actions, start = self.order[rank], self.place[rank]
        while self.place[rank] < len(actions) and self._do(rank, actions[self.place[rank]]):
            self.place[rank] += 1
        return self.place[rank] > start

    def _do(self, rank: int, action: Action) -> bool:
        """Do one thing; ``False`` if what it needs is not there yet."""
        stage, what, _ = action
        times = self.times[stage]
        if what == "UNSHARD":
            self.gathered[stage] = self.exchanged[rank] = max(self.exchanged[rank], self.free[rank]) + times.gathered
            return True
        needs = self._needs(action)
        if needs is None:
            return False
        start = self._with_parameters(rank, stage, max(self.free[rank], needs))
        seconds = times.forward if what == "F" else (times.backward if what == "B" else times.backward / 2) + times.again
        self.free[rank], self.busy[rank] = start + seconds, self.busy[rank] + seconds
        if what != "W":
            self._send(rank, action)
        if what in ("B", "W"):
            self._reduce(rank, stage, start)
        return True

    def _needs(self, action: Action) -> float | None:
        """When what an action needs from another stage is there; ``None`` if nobody knows yet."""
        stage, what, number = action
        if what == "W" or (what == "F" and stage == 0) or (what != "F" and stage == len(self.times) - 1):
            return 0.0
        return self.arrived.get((stage, "F" if what == "F" else "B", number))

    def _with_parameters(self, rank: int, stage: int, start: float) -> float:
        """When an action can start whose stage has to have its parameters; without a plan for them, they are asked for now."""
        if stage not in self.gathered:
            self.gathered[stage] = self.exchanged[rank] = max(start, self.exchanged[rank]) + self.times[stage].gathered
        return max(start, self.gathered[stage])

    def _send(self, rank: int, action: Action) -> None:
        stage, what, number = action
        target, seconds = (stage + 1, self.times[stage].sent) if what == "F" else (stage - 1, self.times[stage].returned)
        if target not in self.holder:
            return
        way = rank, self.holder[target]
        begin = self.free[rank] if rank == way[1] else max(self.free[rank], self.channels.get(way, 0.0))
        self.channels[way] = self.arrived[target, "F" if what == "F" else "B", number] = begin + seconds

    def _reduce(self, rank: int, stage: int, start: float) -> None:
        """A stage's gradients are summed with its last backward; all but the tail of them may be underway before it ends."""
        self.left[stage] -= 1
        if not self.left[stage]:
            times, end = self.times[stage], self.free[rank]
            early = max(start, self.exchanged[rank]) + times.reduced - times.tail
            self.exchanged[rank] = max(early, end, self.exchanged[rank]) + times.tail


def most_kept(actions: Sequence[Action], values: ByStage, later: ByStage | None = None) -> float:
    """The most that one rank keeps at once of what microbatches in flight save for backward.

    Args:
        actions: of the rank.
        values: bytes that one microbatch saves, by stage.
        later: bytes that it keeps between the halves of a backward, if they are others.

    Example:
        >>> from partitioner.distributed.pipeline.order import order_of
        >>> [most_kept(order_of(name, 4, 1, 8)[1], [1.0] * 4) for name in ("1f1b", "gpipe")]
        [3.0, 8.0]
    """
    return max(_kept(actions, values, later or values), default=0.0)


def _kept(actions: Sequence[Action], values: ByStage, later: ByStage) -> Iterator[float]:
    kept = 0.0
    for stage, what, _ in actions:
        saved, left = values[stage], later[stage]
        if what == "F":
            kept += saved
        elif what == "B":
            kept -= saved
        elif what == "I":
            kept += left - saved
        elif what == "W":
            kept -= left
        yield kept
