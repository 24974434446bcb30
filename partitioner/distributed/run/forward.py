"""Inference over ranks: a batch in, the model's output out of the rank that has the last stage; nothing is kept for a backward.

    rank 0   m0 m1 m2 m3
    rank 1      m0 m1 m2 m3  ->  output       microbatches follow each other through the stages

Outputs of microbatches are put together by rows; of a single one they may be anything, such as a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _CustomReducer
from torch.utils._pytree import tree_leaves

from partitioner.distributed.ranks import Ranks, told
from partitioner.distributed.run.batches import Batches
from partitioner.distributed.tensor.shards import Shards
from partitioner.distributed.traced.example import Example
from partitioner.errors import InputError


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


def merging_of(example: Example, count: int) -> tuple[Any, ...]:
    """How results of microbatches are put together, as torch's schedules take it: by rows, or else the last one stands for all.

    Args:
        example: a call with a microbatch.
        count: how many there are.

    Raises:
        InputError: there are several, and the model returns what is not by rows; names the value.
    """
    graph, rows = example.traced.graph, example.rows
    returned = {name for name, _ in example.leaves}
    chunks, reducer, found = cast("Any", TensorChunkSpec), cast("Any", _CustomReducer), []
    for name in graph.outputs:
        meta = graph.metas[name]
        by_rows = meta is not None and meta.shape[:1] == (rows,)
        if count > 1 and name in returned and not by_rows:
            raise InputError(
                f"the model returns {name}, {meta}, without a row for each of the {rows} of a microbatch; return "
                "what is by rows, or ask for one microbatch"
            )
        found.append(chunks(0) if by_rows else reducer(None, lambda _, last: last))
    return tuple(found)
