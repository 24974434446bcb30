"""Inference over ranks: a batch in, the model's output out of the rank that has the last stage; nothing is kept for a backward.

    rank 0   m0 m1 m2 m3
    rank 1      m0 m1 m2 m3  ->  output       microbatches follow each other through the stages

Outputs of microbatches are put together by rows, in whatever dimension they are; of a single one they may be anything, such as
a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.ranks import Ranks, refuse, told
from partitioner.distributed.run.step import UNCOPIED
from partitioner.distributed.tensor.shards import Shards


@dataclass(eq=False)
class Forward:
    """Called with a batch on every rank, it gives the model's output on the rank of the last stage, and ``None`` on others.

    Args:
        ranks: this rank.
        schedule: of `torch.distributed.pipelining`, without a loss.
        first_here: whether this rank has the first stage.
        batches: what stages read.
        shards: which part of each parameter this rank has, if there is a tensor axis.
    """

    ranks: Ranks
    schedule: Any
    first_here: bool
    batches: Batches
    shards: Shards | None = None

    def __reduce__(self) -> NoReturn:
        refuse(UNCOPIED, "copying a forward")

    @torch.no_grad()
    def __call__(self, inputs: Any) -> Any:
        """The output of one batch.

        Raises:
            InputError: the batch is not what the stages were made for.
            RanksError: another rank failed or is lost; names it and its cause.
        """
        with told(self.ranks, "reading a batch"):
            self.batches.fill(inputs, None)
        with told(self.ranks, "in a forward"):
            if self.shards is not None:
                self.shards.start_step()
            numbers = torch.arange(self.batches.count)
            given = (numbers,) if self.first_here else ()
            merged = self.schedule.step(*given, number=numbers)
        return None if merged is None else self.batches.example.output(tree_leaves(merged), self.batches.whole)
