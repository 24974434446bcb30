"""The schedules of `torch.distributed.pipelining`, by the names that specs have for them; which ranks hold which stages.

    looped    rank 0: stages 0, 2    rank 1: stages 1, 3
    v         rank 0: stages 0, 3    rank 1: stages 1, 2        the loss is on rank 0

Sources: GPipe: Huang et al., NeurIPS 2019; 1F1B: Narayanan et al., SOSP 2019; interleaved: Narayanan et al., SC 2021;
zero bubble: Qi et al., ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from partitioner.errors import SpecError
from partitioner.spec.distributed import DistributedSpec


@dataclass(frozen=True)
class Kind:
    """One schedule.

    Args:
        make: torch's class.
        several: whether a rank holds several stages.
        v: whether the last stages lie on the first ranks.
        least: how many microbatches it needs for each rank, at least.
        split: whether gradients of weights come later than those of inputs.
    """

    make: Callable[..., Any]
    several: bool = False
    v: bool = False
    least: int = 0
    split: bool = False

    def stages_of(self, rank: int, ranks: int, each: int) -> tuple[int, ...]:
        """The numbers of the stages that a rank holds.

        >>> Kind(ScheduleZBVZeroBubble, several=True, v=True).stages_of(0, 2, 2)
        (0, 3)
        """
        if self.v:
            return rank, 2 * ranks - 1 - rank
        return tuple(range(rank, ranks * each, ranks))

    def holder(self, stage: int, ranks: int) -> int:
        """The place along the pipeline axis of the rank that holds a stage.

        >>> Kind(ScheduleZBVZeroBubble, several=True, v=True).holder(3, 2)
        0
        """
        return min(stage, 2 * ranks - 1 - stage) if self.v else stage % ranks


SCHEDULES: dict[str, Kind] = {
    "gpipe": Kind(ScheduleGPipe),
    "1f1b": Kind(Schedule1F1B, least=1),
    "looped_bfs": Kind(ScheduleLoopedBFS, several=True),
    "interleaved_1f1b": Kind(ScheduleInterleaved1F1B, several=True),
    "interleaved_zero_bubble": Kind(ScheduleInterleavedZeroBubble, several=True, split=True),
    "zbv_zero_bubble": Kind(ScheduleZBVZeroBubble, several=True, v=True, split=True),
}


def kind_of(spec: DistributedSpec) -> Kind:
    """The schedule that a spec names, once it is seen to go with the rest of the spec.

    Raises:
        SpecError: it does not.
    """
    kind, ranks = SCHEDULES[spec.schedule], spec.mesh.pipeline
    if kind.several and spec.stages_per_rank < 2:
        raise SpecError(f"schedule {spec.schedule} gives each rank several stages; set stages_per_rank to 2 or more")
    if not kind.several and spec.stages_per_rank > 1:
        raise SpecError(f"schedule {spec.schedule} gives each rank one stage, and stages_per_rank is {spec.stages_per_rank}")
    if kind.v and spec.stages_per_rank != 2:
        raise SpecError(f"schedule {spec.schedule} gives each rank two stages, and stages_per_rank is {spec.stages_per_rank}")
    if spec.microbatches < kind.least * ranks:
        raise SpecError(
            f"schedule {spec.schedule} needs as many microbatches as ranks: {ranks}, and {spec.microbatches} were asked"
        )
    if kind.split and spec.wrap != "none" and spec.mesh.data > 1:
        raise SpecError(
            f"schedule {spec.schedule} with {spec.wrap} gives wrong gradients on the last stage (torch 2.13): take 1f1b or "
            "interleaved_1f1b, or wrap: none and average the gradients of the copies before each step of an optimizer"
        )
    if spec.recompute != "none" and spec.mesh.branch > 1 and (kind.split or spec.recompute == "segments"):
        raise SpecError(
            f"recompute: {spec.recompute} with schedule {spec.schedule} and a branch axis: its ranks run other ops, and would "
            "run them again at different times; take recompute: stage, and a schedule whose backwards are not split"
        )
    return kind


def schedule(spec: DistributedSpec, kind: Kind, stages: list[PipelineStage], loss: Callable[..., Any] | None) -> Any:
    """The schedule, ready to step. It scales no gradients, for a weight that two of its stages share it would scale twice."""
    return kind.make(stages if kind.several else stages[0], spec.microbatches, loss_fn=loss, scale_grads=False)
