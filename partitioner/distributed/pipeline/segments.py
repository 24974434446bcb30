"""Into which segments a stage is divided, each of which is run again in a backward by itself: activation checkpointing.

    segment 0   blocks 0 and 1      keeps ids                 what is inside is made again when its backward begins
    segment 1   blocks 2 and 3      keeps h of block 1
    segment 2   block 4, head       keeps h of block 3

More segments keep more borders, for each microbatch in flight; fewer make more at once again. As many as take the least of both
together are taken. Source: Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174, for chains of equal
layers; here borders are where little passes, and segments need not be equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.evenly import cuts_between
from partitioner.distributed.pipeline.order import ahead_of, order_of, turn_of
from partitioner.distributed.pipeline.part import Part, part_of
from partitioner.distributed.pipeline.staying import sharing_a_stage
from partitioner.distributed.pipeline.timeline import most_kept
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.graph import Op
from partitioner.planner.constraints import Constraints
from partitioner.spec.distributed import DistributedSpec


def in_flight(asked: DistributedSpec) -> int:
    """How many microbatches the rank that has the most of them has between a forward and its backward."""
    return _in_flight(asked.schedule, asked.mesh.pipeline, asked.stages_per_rank, asked.microbatches)


@cache
def _in_flight(schedule: str, ranks: int, each: int, microbatches: int) -> int:
    ones = [1.0] * (ranks * each)
    return round(max(most_kept(actions, ones) for actions in order_of(schedule, ranks, each, microbatches)))


def least_in_flight(asked: DistributedSpec) -> list[int]:
    """How many microbatches each rank has at least between forwards and backwards at once, of each of its stages.

    Of a schedule whose order is not known without planning it, one.

    >>> least_in_flight(DistributedSpec(mesh={"pipeline": 4}, schedule="1f1b", microbatches=8))
    [4, 3, 2, 1]
    >>> interleaved = {"schedule": "interleaved_1f1b", "stages_per_rank": 2}
    >>> least_in_flight(DistributedSpec(mesh={"pipeline": 4}, **interleaved, microbatches=8))
    [4, 4, 3, 1]
    """
    ranks, count = asked.mesh.pipeline, asked.microbatches
    if asked.schedule in ("gpipe", "looped_bfs"):
        return [count] * ranks
    if asked.schedule == "1f1b":
        return [min(ranks - rank, count) for rank in range(ranks)]
    if asked.schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):  # the second begins as the first one does
        each = asked.stages_per_rank
        turn, total = turn_of(ranks, count), each * count
        begun = (min(total, ahead_of(rank, ranks, each, turn) + 1) for rank in range(ranks))  # until the first backward
        return [max(1, min(_of_last_stage(each, turn, most), count)) for most in begun]
    return [1] * ranks


def most_in_flight(asked: DistributedSpec) -> list[int]:
    """How many microbatches are in flight at least when these are most: of each stage, or of all of a rank at once.

    A zero bubble shaped like a V is filled until the first microbatch comes back, which has passed all stages behind.

    >>> most_in_flight(DistributedSpec(mesh={"pipeline": 2}, schedule="zbv_zero_bubble", stages_per_rank=2, microbatches=8))
    [4, 3, 2, 1]
    """
    if asked.schedule != "zbv_zero_bubble":
        return least_in_flight(asked)
    stages = 2 * asked.mesh.pipeline
    return [min(stages - stage, asked.microbatches) for stage in range(stages)]


def _of_last_stage(each: int, turn: int, forwards: int) -> int:
    """How many of a rank's first forwards are of its last stage, where stages take turns."""
    rounds, inside = divmod(forwards, each * turn)
    return rounds * turn + max(0, inside - (each - 1) * turn)


def segments_of(traced: Traced, asked: DistributedSpec, flying: int) -> tuple[Part, ...]:
    """The segments of what a stage runs, each as a part of its own.

    Args:
        traced: what it runs.
        asked: says whether it is divided at all.
        flying: how many microbatches are between a forward and its backward, as from `in_flight`.

    Example:
        >>> import torch
        >>> from partitioner.distributed.traced.example import example_in
        >>> deep = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
        >>> traced = example_in(deep, torch.ones(2, 4), None, 1).traced
        >>> [len(each.graph.ops) for each in segments_of(traced, DistributedSpec(recompute="segments"), 1)]
        [2, 2]
        >>> [len(each.graph.ops) for each in segments_of(traced, DistributedSpec(recompute="stage"), 1)]
        [4]
    """
    graph = traced.graph
    whole = Part(0, traced, (), tuple(name for name, _ in graph.inputs), graph.outputs, graph.outputs)
    if asked.recompute != "segments":
        return (whole,)
    ends = ends_of(graph.ops, sharing_a_stage(graph, traced.state_metas), flying)
    if len(ends) == 1:
        return (whole,)
    number = {op.name: bisect_left(ends, place + 1) for place, op in enumerate(graph.ops)}
    cut = Cut(graph, number, (0.0,) * len(ends), 0.0)
    return tuple(part_of(traced, cut, each) for each in range(len(ends)))


def ends_of(ops: Sequence[Op], rules: Constraints, flying: int) -> list[int]:
    """After how many ops each segment ends: of the best for segments of half of all, a quarter, an eighth, the best.

    Args:
        ops: of a stage, in order.
        rules: which of them must share a segment, as from `sharing_a_stage`.
        flying: as for `segments_of`.
    """
    cuts = cuts_between(ops, rules)
    made = _made(ops, cuts)
    width = [flying * size for size in _widths(ops, cuts)]
    best: tuple[float, list[int]] = made[-1], [len(cuts) - 1]
    most = made[-1] / 2
    while most > max(after - before for before, after in pairwise(made)) / 2:
        found = _narrowest(made, width, most)
        largest = max(made[end] - made[begin] for begin, end in pairwise([0, *found]))
        best = min(best, (sum(width[each] for each in found[:-1]) + largest, found), key=lambda each: each[0])
        most /= 2
    return [cuts[each] for each in best[1]]


def _made(ops: Sequence[Op], cuts: Sequence[int]) -> list[float]:
    """Bytes of what the ops before each cut make, views left out."""
    sums = [0.0]
    for op in ops:
        sums.append(sums[-1] + op.bytes * (op.name in op.storages))
    return [sums[cut] for cut in cuts]


def _widths(ops: Sequence[Op], cuts: Sequence[int]) -> list[float]:
    """Bytes of what ops before each cut make and ops behind it read."""
    place = {op.name: number for number, op in enumerate(ops)}
    last = {name: number for number, op in enumerate(ops) for name in op.inputs if name in place}
    change = [0.0] * (len(ops) + 1)
    for name, reader in last.items():
        size = ops[place[name]].bytes
        change[place[name] + 1] += size
        change[reader + 1] -= size
    sums, total = [], 0.0
    for each in change:
        total += each
        sums.append(total)
    return [sums[cut] for cut in cuts]


def _narrowest(made: Sequence[float], width: Sequence[float], most: float) -> list[int]:
    """The cuts between segments of at most ``most`` bytes, or of what lies between two neighbours, with the least width.

    Dynamic programming over the cuts: best[i] is the least width of cuts of all before cut i, i among them. The candidates for
    the cut before form a window that moves on; a queue keeps those that may still be the least in it, the least first.

    Returns:
        The places of the cuts, the last one among them.
    """
    best, before, queue = [0.0], [0], deque([0])
    for end in range(1, len(made)):
        while queue and made[end] - made[queue[0]] > most:
            queue.popleft()
        begin = queue[0] if queue else end - 1
        best.append(best[begin] + width[end])
        before.append(begin)
        while queue and best[queue[-1]] >= best[end]:
            queue.pop()
        queue.append(end)
    found, end = [], len(made) - 1
    while end:
        found.append(end)
        end = before[end]
    return found[::-1]
