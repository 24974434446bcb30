"""What is told of a loss: of two microbatches, and of both as one. One that is no mean of theirs is refused, on all ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

from partitioner.distributed.ranks import Ranks
from partitioner.errors import InputError


@dataclass(frozen=True)
class Told:
    """What two losses are, and what one of both together is; ``nan`` where that is known to be something else.

    Example:
        >>> Told(1.0, 3.0, 2.0).is_mean, Told(1.0, 3.0, 4.0).is_sum, Told(1.0, 3.0, 2.2).is_mean
        (True, True, False)
    """

    one: float
    other: float
    both: float

    @property
    def is_mean(self) -> bool:
        """Whether that of both is the mean of theirs."""
        return self._is((self.one + self.other) / 2)

    @property
    def is_sum(self) -> bool:
        """Whether that of both is the sum of theirs."""
        return self._is(self.one + self.other)

    def _is(self, value: float) -> bool:
        return math.isclose(self.both, value, rel_tol=1e-6, abs_tol=1e-12)


A_SUM = Told(1.0, 1.0, 2.0)
NO_MEAN = Told(math.nan, math.nan, math.nan)


def refuse_no_mean(told: Told | None, parts: int, ranks: Ranks, last: int) -> None:
    """Refuse a loss of which the mean over microbatches is not that of the batch.

    Args:
        told: what it is of two of them, if it is no mean; on the rank of the last stage.
        parts: microbatches of all copies.
        ranks: this rank.
        last: the place along the pipeline axis of the rank that has the last stage.

    Raises:
        InputError: on every rank; says what to give instead.
    """
    found = (told.one, told.other, told.both) if told is not None else (0.0,) * 3
    here = torch.tensor([float(told is not None), *found], dtype=torch.float64, device=ranks.device)
    if ranks.wide("pipeline"):
        dist.broadcast(here, group=ranks.mesh.get_group("pipeline"), group_src=last)
    anywhere = here[:1].clone()
    if ranks.wide("data"):
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=ranks.mesh.get_group("data"))
    if anywhere > 0:
        raise InputError(_said(Told(*here[1:].tolist()) if here[0] > 0 else NO_MEAN, parts))


def _said(told: Told, parts: int) -> str:
    averaged = f"the losses of {parts} microbatches and copies are averaged"
    if told.is_sum:
        return (
            f"the loss is a sum, and {averaged}: give the mean over rows, as .sum() / len(output); or, for the sum over the "
            f"whole batch, {parts} times that sum, and count_fn=lambda *_, **__: 1"
        )
    known = math.isfinite(told.both)
    numbers = f": of two microbatches it is {told.one:g} and {told.other:g}, of both as one {told.both:g}" if known else ""
    return (
        f"the loss is no mean over rows{numbers}. It compares rows, chooses among them, weighs them by all or is divided by "
        f"something else than how many there are, and {averaged}: that is not the loss of the batch. With microbatches: 1, and "
        "without a data axis, it is. If it is a sum over rows that is divided by another, give that one: "
        "parallelize(..., count_fn=lambda target: target[1].sum()); if each microbatch is to be looked at by itself, say so: "
        "count_fn=lambda *_, **__: 1"
    )
