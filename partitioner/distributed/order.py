"""In which order the ranks of a pipeline do what a schedule has for them: the engine's own order, without the engine's ranks.

    1f1b, 2 ranks, 3 microbatches     rank 0   0F0 0F1 0B0 0F2 0B1 0B2       <stage><what><microbatch>
                                      rank 1   1F0 1B0 1F1 1B1 1F2 1B2

GPipe and 1F1B are written out here as their classes run them. Schedules with several stages for each rank are asked of
`torch.distributed.pipelining`, which plans them for all ranks at once.

Sources: GPipe: Huang et al., NeurIPS 2019; 1F1B: Narayanan et al., SOSP 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from partitioner.distributed.schedules import SCHEDULES
from partitioner.errors import SpecError

What = Literal["F", "B", "I", "W", "UNSHARD"]
"""A forward; a backward; a backward in two parts, for inputs and for weights; the parameters of a stage are gathered."""


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
    engine: Any = SCHEDULES[schedule].make
    try:
        planned = get_schedule_ops(engine, ranks, microbatches, each, with_comms=True)
    except ValueError as error:
        raise SpecError(f"schedule {schedule} on {ranks} ranks with {microbatches} microbatches: {error}") from error
    return tuple(_actions(steps) for steps in planned)


def _actions(steps: Sequence[Any]) -> tuple[Action, ...]:
    """What the engine plans for a rank, without what it sends, receives and frees."""
    kept = get_args(What)
    found = ((step.stage_index, step.computation_type.value, step.microbatch_index) for step in steps)
    return tuple(Action(stage, what, -1 if number is None else number) for stage, what, number in found if what in kept)


def _first_forwards(stage: int, ahead: int, microbatches: int) -> tuple[Action, ...]:
    """One stage: ``ahead`` forwards, then a backward and a forward in turns, then the backwards that are left."""
    actions = [Action(stage, "F", number) for number in range(ahead)]
    for number in range(microbatches):
        actions.append(Action(stage, "B", number))
        if ahead + number < microbatches:
            actions.append(Action(stage, "F", ahead + number))
    return tuple(actions)
