"""Inference over ranks: a batch in, the model's output out of the rank that has the last stage; nothing is kept for a backward.

    rank 0   m0 m1 m2 m3
    rank 1      m0 m1 m2 m3  ->  output       microbatches follow each other through the stages

Outputs of microbatches are put together by rows, in whatever dimension they are; of a single one they may be anything, such as
a loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import nn
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _CustomReducer
from torch.utils._pytree import tree_leaves

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.ranks import Ranks, refuse, told
from partitioner.distributed.run.step import UNCOPIED
from partitioner.distributed.tensor.shards import Shards
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.larger import whole_results
from partitioner.distributed.traced.rows import growing
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


def merging_of(model: nn.Module, example: Example, count: int) -> tuple[Any, ...]:
    """How results of microbatches are put together, as torch's schedules take it: by rows, or else the last one stands for all.

    Args:
        model: what was traced.
        example: a call with a microbatch.
        count: how many there are.

    Raises:
        InputError: there are several, and together they are not what the model returns of a batch; names the value.
    """
    chunks, reducer = cast("Any", TensorChunkSpec), cast("Any", _CustomReducer)
    along = _along(example, whole_results(model, example, count), count) if count > 1 else {}
    return tuple(
        chunks(along[name]) if name in along else reducer(None, lambda _, last: last) for name in example.traced.graph.outputs
    )


def _along(example: Example, whole: Sequence[Any], count: int) -> dict[str, int]:
    """The dimension of each result in which rows follow each other; one of as many may be anything else.

    Args:
        example: a call with a microbatch.
        whole: what the model returns of ``count`` times the rows.
        count: how many microbatches there are.
    """
    graph, rows, found = example.traced.graph, example.rows, dict[str, int]()
    for (name, value), wanted in zip(example.leaves, whole, strict=True):
        meta = graph.metas[name] if name in graph.outputs else None
        if meta is not None:
            longer = growing(meta.shape, wanted.shape)
            if [meta.shape[each] for each in longer] != [rows] or wanted.shape[longer[0]] != rows * count:
                raise InputError(
                    f"the model returns {name}, of shape {meta.shape} for {rows} of a batch's {rows * count} rows and "
                    f"{tuple(wanted.shape)} for all, which is not one microbatch behind the other; return what is by rows, or "
                    "ask for one microbatch"
                )
            found[name] = longer[0]
        elif not name and value != wanted:
            raise InputError(
                f"the model returns {value!r} for {rows} of a batch's {rows * count} rows and {wanted!r} for all; leave it "
                "out, or ask for one microbatch"
            )
    return found
