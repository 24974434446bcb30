"""In which order the ranks of a pipeline do what a schedule has for them: the engine's own order, without the engine's ranks.

    1f1b, 2 ranks, 3 microbatches     rank 0   0F0 0F1 0B0 0F2 0B1 0B2       <stage><what><microbatch>
                                      rank 1   1F0 1B0 1F1 1B1 1F2 1B2

All but the zero-bubble schedules are written out here as their classes run them; those are asked of
`torch.distributed.pipelining`, for what ranks compute. When its classes plan sends and receives, too, that takes minutes for
hundreds of ranks, and ``mesh: auto`` looks at many orders.

Sources: GPipe: Huang et al., NeurIPS 2019; 1F1B: Narayanan et al., SOSP 2019; interleaved: Narayanan et al., SC 2021; looped:
Lamy-Poirier, "Breadth-first pipeline parallelism", 2022.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from partitioner.distributed.pipeline.schedules import SCHEDULES
from partitioner.errors import SpecError

What = Literal["F", "B", "I", "W", "UNSHARD"]
"""A forward; a backward; a backward in two parts, for inputs and for weights; the parameters of a stage are gathered."""


ACTIVE = 3
"""Of how many stages the engine has the parameters of a rank gathered at once."""


class Action(NamedTuple):
    """One thing that a rank does.

    Args:
        stage: for which stage.
        what: see `What`.
        microbatch: its number; -1 where it is for no microbatch.
    """

    stage: int
    what: What
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.what}{self.microbatch if self.microbatch >= 0 else ''}"


Order = tuple[tuple[Action, ...], ...]
"""What each rank does, by rank."""


@cache
def order_of(schedule: str, ranks: int, each: int, microbatches: int) -> Order:
    """The order of a schedule.

    Args:
        schedule: its name in a spec.
        ranks: along the pipeline axis.
        each: stages of each rank.
        microbatches: how many there are.

    Raises:
        SpecError: the schedule does not go with these numbers.

    Example:
        >>> for rank in order_of("1f1b", 2, 1, 3):
        ...     print(*rank)
        0F0 0F1 0B0 0F2 0B1 0B2
        1F0 1B0 1F1 1B1 1F2 1B2
    """
    if schedule == "gpipe":
        return tuple(_first_forwards(rank, microbatches, microbatches) for rank in range(ranks))
    if schedule == "1f1b":
        return tuple(_first_forwards(rank, min(ranks - rank, microbatches), microbatches) for rank in range(ranks))
    if schedule in ("looped_bfs", "interleaved_1f1b"):
        if schedule == "looped_bfs":
            orders = [_breadth_first(range(rank, ranks * each, ranks), microbatches) for rank in range(ranks)]
        else:
            orders = [_interleaved(rank, ranks, each, microbatches) for rank in range(ranks)]
        return tuple(tuple(_gathering(actions)) for actions in orders)
    try:
        planned = get_schedule_ops(_computing(SCHEDULES[schedule].make), ranks, microbatches, each)
    except ValueError as error:
        raise SpecError(f"schedule {schedule} on {ranks} ranks with {microbatches} microbatches: {error}") from error
    return tuple(tuple(_gathering(_actions(steps))) for steps in planned)


def _computing(engine: Any) -> Any:
    """A schedule of the engine that plans what ranks compute, and not also what they send."""
    return type(engine.__name__, (engine,), {"_prepare_schedule_with_comms": lambda *_args, **_options: None})


def _actions(steps: Sequence[Any]) -> tuple[Action, ...]:
    """What the engine plans for a rank, without what it sends, receives and frees, and without waits."""
    kept = get_args(What)
    found = ((step.stage_index, step.computation_type.value, step.microbatch_index) for step in steps if step is not None)
    return tuple(Action(stage, what, -1 if number is None else number) for stage, what, number in found if what in kept)


def _breadth_first(stages: range, microbatches: int) -> list[Action]:
    """All forwards of one stage after those of the other, then all backwards, in reverse."""
    forwards = [Action(stage, "F", number) for stage in stages for number in range(microbatches)]
    return forwards + [Action(stage, "B", number) for stage, _, number in reversed(forwards)]


def turn_of(ranks: int, microbatches: int) -> int:
    """How many microbatches a stage works on before the next one of its rank has its turn, where stages take turns."""
    return microbatches // max(1, microbatches // ranks)


def ahead_of(rank: int, ranks: int, each: int, turn: int) -> int:
    """How many forwards come before the first that a backward follows, where stages take turns."""
    return (each - 1) * turn + 2 * (ranks - 1 - rank)


def _interleaved(rank: int, ranks: int, each: int, microbatches: int) -> list[Action]:
    """Stages take turns: each works on a round of microbatches, one for each rank if they divide so, before the next one does.

    Raises:
        SpecError: the microbatches do not divide into rounds.
    """
    turn, total = turn_of(ranks, microbatches), each * microbatches
    if microbatches % turn:
        raise SpecError(
            f"schedule interleaved_1f1b on {ranks} ranks with {microbatches} microbatches: it works in "
            f"{max(1, microbatches // ranks)} rounds, and the number of microbatches has to be a multiple of that"
        )
    ahead = min(total, ahead_of(rank, ranks, each, turn))

    def action(what: What, place: int) -> Action:
        loop, inside = divmod(place, each * turn)
        chunk, number = divmod(inside, turn)
        return Action((chunk if what == "F" else each - 1 - chunk) * ranks + rank, what, loop * turn + number)

    actions = [action("F", place) for place in range(ahead)]
    for place in range(total):
        actions += [action("F", ahead + place)] * (ahead + place < total)
        actions.append(action("B", place))
    return actions


def _gathering(actions: Sequence[Action]) -> Iterator[Action]:
    """The same, with the parameters of the next `ACTIVE` stages gathered ahead; those of others are let go for them."""
    after: dict[int, deque[int]] = {}
    for place, action in enumerate(actions):
        after.setdefault(action.stage, deque()).append(place)
    if len(after) <= ACTIVE:  # none is let go
        yield from (Action(stage, "UNSHARD", -1) for stage in after)
        yield from actions
        return
    active: set[int] = set()
    for action in actions:
        soon = heapq.nsmallest(ACTIVE, (stage for stage in after if after[stage]), key=lambda stage: after[stage][0])
        yield from (Action(stage, "UNSHARD", -1) for stage in soon if stage not in active)
        active = set(soon)
        after[action.stage].popleft()
        yield action


def _first_forwards(stage: int, ahead: int, microbatches: int) -> tuple[Action, ...]:
    """One stage: ``ahead`` forwards, then a backward and a forward in turns, then the backwards that are left."""
    actions = [Action(stage, "F", number) for number in range(ahead)]
    for number in range(microbatches):
        actions.append(Action(stage, "B", number))
        if ahead + number < microbatches:
            actions.append(Action(stage, "F", ahead + number))
    return tuple(actions)
