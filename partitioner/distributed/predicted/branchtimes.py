"""How long a stage takes whose branches are on ranks of their own: what each of them runs, from one exchange to the next.

    rank 0   first  | share | tower a .......... |         |
    rank 1          |       | tower b ... tower c | deliver | head         the longest of each stretch, and the exchanges

All ranks of the axis take part in each exchange, so nobody is ahead of the others behind one. Backward is the same in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from partitioner.distributed.pipeline.branches import branch_of
from partitioner.distributed.pipeline.passing import deliver, fan, share
from partitioner.distributed.predicted.communication import all_reduce, broadcast
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.graph import Op
from partitioner.ir.machine import Link

Exchange = Callable[[float, int, Link], float] | None
"""Seconds of bytes, ranks and a link; none if nothing is sent."""

FORWARDS: dict[str, Exchange] = {share.__name__: broadcast, deliver.__name__: broadcast, fan.__name__: None}
"""What each exchange does forwards: ``fan`` hands on what all ranks have."""

BACKWARDS: dict[str, Exchange] = {share.__name__: all_reduce, deliver.__name__: None, fan.__name__: all_reduce}
"""What each exchange does backwards: of what was delivered every rank has the whole gradient."""


@dataclass(frozen=True, eq=False)
class Branches:
    """A stage over the ranks of a branch axis.

    Args:
        owner: the rank of each op.
        ranks: along the axis.
        forward, backward: seconds of one microbatch.
    """

    owner: Mapping[str, int]
    ranks: int
    forward: float
    backward: float


def branches_of(
    traced: Traced,
    owner: Mapping[str, int],
    ranks: int,
    link: Link,
    forward: Callable[[Op], float],
    backward: Callable[[Op], float],
) -> Branches:
    """A stage, with its seconds.

    Args:
        traced: what it runs.
        owner: the rank of each op.
        ranks: along the axis.
        link: what each has to the next.
        forward, backward: seconds of an op of the stage.
    """
    local = [branch_of(traced, owner, rank, "", torch.device("cpu")).graph.ops for rank in range(ranks)]

    def exchanged(op: Op, by: Mapping[str, Exchange]) -> float:
        how, meta = by[op.target], op.outputs[0]
        sent = by is FORWARDS or meta.dtype.is_floating_point or meta.dtype.is_complex
        return float(how(meta.bytes, ranks, link)) if how is not None and sent else 0.0

    exchanges = [op for op in local[0] if _is_exchange(op, owner)]
    seconds = [
        _longest(local, owner, each) + sum(exchanged(op, by) for op in exchanges)
        for each, by in ((forward, FORWARDS), (backward, BACKWARDS))
    ]
    return Branches(owner, ranks, *seconds)


def _is_exchange(op: Op, owner: Mapping[str, int]) -> bool:
    return bool(op.name not in owner and op.target in FORWARDS)


def _longest(local: Sequence[Sequence[Op]], owner: Mapping[str, int], seconds: Callable[[Op], float]) -> float:
    """The sum of the longest stretches between exchanges."""
    ranks: list[list[float]] = []
    for ops in local:
        stretches = [0.0]
        for op in ops:
            if _is_exchange(op, owner):
                stretches.append(0.0)
            elif op.name in owner:
                stretches[-1] += seconds(op)
        ranks.append(stretches)
    found: float = sum(max(stretch) for stretch in zip(*ranks, strict=True))
    return found
