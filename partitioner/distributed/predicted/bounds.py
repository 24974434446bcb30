"""What a step of a job takes at least, seconds and bytes, from ever more that is known of it: what ``mesh: auto`` leaves ways
out by.

traced at two sizes       line_through    what ops take at a third one
traced                    least           the work, one microbatch's way and the exchange of gradients, shared out evenly
                          with_bubble     and the waits of a pipeline, wherever it is cut
                          room            what stands, and what microbatches in flight leave, shared out evenly
                          with_longest    likewise, if no stage is longer than some
cut                       with_waits      and as it is cut
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from itertools import accumulate

import numpy as np

from partitioner.distributed.pipeline.schedules import SCHEDULES, kind_of
from partitioner.distributed.pipeline.segments import least_in_flight, most_in_flight
from partitioner.distributed.predicted.communication import all_gather, all_reduce, reduce_scatter
from partitioner.distributed.predicted.loads import BACKWARD, backwards, held
from partitioner.ir.cluster import Cluster
from partitioner.ir.machine import Link
from partitioner.ir.memory import Memory
from partitioner.spec.distributed import DistributedSpec

FAR = 1e300
"""Sums of waits are followed so far; what is added to the bound beyond is nothing."""


def line_through(fewer: Mapping[str, float], more: Mapping[str, float], level: Set[str], reach: float) -> float:
    """Seconds that ops take at least with still more rows, from what they took with fewer and with more.

    What an op computes and moves grows as steadily as before or faster, and so does the larger of both; so a line through two
    points is below it further on.

    Args:
        fewer, more: seconds of each op.
        level: ops that may stop to grow, as lookups do that read a table no more than once.
        reach: the rows beyond ``more``, in steps as large as that from ``fewer``.

    Returns:
        The seconds; 0 where the ops are not the same ones.

    Example:
        >>> line_through({"linear": 3.0, "embedding": 1.0}, {"linear": 4.0, "embedding": 2.0}, {"embedding"}, reach=2.0)
        8.0
    """
    if fewer.keys() != more.keys():
        return 0.0
    return sum(after + (0.0 if name in level else reach * (after - fewer[name])) for name, after in more.items())


def least(forward: float, exchanged: float, memory: Memory, asked: DistributedSpec, cluster: Cluster) -> float:
    """Seconds that a step takes at least, whatever the schedule and the cut. It is the longest of three:

    all work, shared out evenly; one microbatch's way through all stages and back, where some schedules leave gradients of
    weights for later; and the gradients (under FSDP2 also the parameters) of one rank's even share, between copies.

    Args:
        forward: seconds of one microbatch.
        exchanged: those of them in which ranks of a tensor axis pass on what they have.
        memory: what is held.
        asked: mesh, microbatches, wrapping.
        cluster: hosts and links.
    """
    pipeline, copies = asked.mesh.pipeline, asked.mesh.data
    later = pipeline > 1 and (copies == 1 or asked.wrap == "none")
    backward, again = backwards(forward, exchanged), forward if asked.recompute != "none" else 0.0
    through = forward + again + (backward / 2 if later else backward)
    weights = {each.storage: each for each in memory.state.values()}.values()
    parameters, gradients = sum(each.bytes for each in weights if each.parameter), sum(each.gradient for each in weights)
    link = replace(cluster.ring(copies, pipeline * asked.mesh.inner), latency=0.0)
    sums = sum(exchange(parameters / pipeline, gradients / pipeline, asked, link))
    return max(asked.microbatches * (forward + again + backward) / pipeline, through, sums) / asked.mesh.branch


def with_bubble(work: float, asked: DistributedSpec) -> float:
    """Seconds that a step takes at least, wherever the stages are cut.

    The longest of the waits that `with_waits` tells of is least where no stage can be made shorter but at another's cost.

    Args:
        work: seconds of one microbatch, forwards and backwards, with what is run again.
        asked: schedule, mesh, microbatches.

    Example:
        >>> asked = DistributedSpec(mesh={"pipeline": 2}, schedule="gpipe", microbatches=2)
        >>> round(with_bubble(6.0, asked), 6)  # stages of 4 and 2: 2 x 4, and 4 and then 2 x 2
        8.0
    """
    again = asked.recompute != "none"
    return work * _least_wait(asked.schedule, asked.mesh.pipeline, asked.stages_per_rank, asked.microbatches, again)


@cache
def _least_wait(schedule: str, ranks: int, each: int, microbatches: int, again: bool) -> float:
    """Seconds of the longest wait for each second of work, at the cut where it is least: a linear program, solved by its dual.

    A wait is a sum over stages, of so many times the work of each. Add waits up, each so often that every stage's work is in
    the sum equally often: then the sum is so often all work, and the longest of them is at least that over how many they are.
    How often follows stage by stage. With m microbatches, of f of whose work at least is done before the next stage begins,
    stage t is in the waits of its rank from t and from before it m times, and in those behind it f times. Held against the
    stage of its rank before it: (m - f) often(t) = f times all between; against none, 1 + f times all before. Then each stage
    is in the sum 1 + f times all, for some unit.
    """
    kind = SCHEDULES[schedule]
    forward = 1 / (1 + BACKWARD + 2 * again) if kind.split else 1.0  # what is done of a stage before the next one begins
    if microbatches == forward:
        return forward  # one microbatch passes all stages
    sums, behind = [0.0], [-1.0 / forward] * ranks  # of how often; and up to the last stage of each rank
    for stage in range(ranks * each):
        rank = kind.holder(stage, ranks)
        often = forward * (sums[-1] - behind[rank]) / (microbatches - forward)
        sums.append(min(sums[-1] + often, FAR))
        behind[rank] = sums[-1]
    return max(microbatches / ranks, forward + (1 / sums[-1] if sums[-1] < FAR else 0.0))


def with_longest(forward: float, exchanged: float, longest: float, asked: DistributedSpec) -> float:
    """Seconds that a step takes at least, wherever the stages are cut, if no stage's forward is longer than so many seconds.

    The mean of the waits of some last ranks, from their first stages on, is a sum over stages of so many times the work of
    each. It is least where stages that count least are as long as they may be, and ranks of a tensor axis pass on what they
    have in those that count most. Of one rank, of two, of four and so on, the best.

    Args:
        forward, exchanged: of one microbatch and all stages, as for `with_waits`.
        longest: of one microbatch and stage, forwards.
        asked: schedule, mesh, microbatches.

    Example:
        >>> asked = DistributedSpec(mesh={"pipeline": 2}, schedule="gpipe", microbatches=2)
        >>> with_longest(2.0, 0.0, 1.0, asked), with_waits([1.0, 1.0], [0.0, 0.0], asked)
        (9.0, 9.0)
        >>> with_longest(2.0, 0.0, 1.5, asked)
        7.5
    """
    kind, ranks, runs = kind_of(asked), asked.mesh.pipeline, _runs(asked)
    stages = np.arange(ranks * asked.stages_per_rank)
    holder = np.array([kind.holder(int(stage), ranks) for stage in stages])
    filled, sent = (np.clip(each - longest * stages, 0.0, longest) for each in (forward, exchanged))
    least, some = 0.0, 1
    while some < 2 * ranks:
        chosen = min(some, ranks)
        behind = np.clip(ranks - 1 - stages, 0, chosen)  # of the chosen ranks, those that begin behind a stage
        times = asked.microbatches * (holder >= ranks - chosen)
        whole = 1 + BACKWARD + runs
        each, less = (behind + whole * times, times) if kind.split else (whole * (behind + times), behind + times)
        least = max(least, float(np.sort(each) @ filled - np.sort(less)[::-1] @ sent) / chosen)
        some *= 2
    return least


def _runs(asked: DistributedSpec) -> int:
    """How often a forward is run again."""
    return 0 if asked.recompute == "none" else 2 if kind_of(asked).split else 1


def with_waits(forwards: Sequence[float], exchanged: Sequence[float], asked: DistributedSpec) -> float:
    """Seconds that a step takes at least with these stages, messages and exchanges of gradients left out.

    A rank begins with a stage once one microbatch has passed all stages before, and when it is done with it and with those of
    its stages that are behind, gradients still have to pass the stages before; but not where those of weights may come later.

    Args:
        forwards: of one microbatch, by stage.
        exchanged: those seconds of them in which ranks of a tensor axis pass on what they have.
        asked: schedule, mesh, microbatches.

    Example:
        >>> asked = DistributedSpec(mesh={"pipeline": 2}, schedule="gpipe", microbatches=4)
        >>> with_waits([1.0, 1.0], [0.0, 0.0], asked)  # (4 + 2 - 1) times 3 seconds
        15.0
    """
    kind, ranks, runs = kind_of(asked), asked.mesh.pipeline, _runs(asked)
    works = [one + runs * one + backwards(one, sent) for one, sent in zip(forwards, exchanged, strict=True)]
    passed = [0.0, *accumulate(forwards if kind.split else works)]
    longest = 0.0
    for rank in range(ranks):
        behind = 0.0
        for stage in reversed(kind.stages_of(rank, ranks, asked.stages_per_rank)):
            behind += works[stage]
            longest = max(longest, passed[stage] + asked.microbatches * behind)
    return longest


def room(memory: Memory, kept: int, asked: DistributedSpec, ranks: int) -> int:
    """Bytes that the fullest rank takes at least, wherever the stages are cut.

    Of n_r microbatches in flight on rank r, K bytes each over all ranks, one has at least K / (1 / n_1 + 1 / n_2 + ..); and so
    it is where r counts stages, each at its own time. With S bytes that stand, one has at least (S + K n) / p, for the least n
    of p ranks. What is run again is taken to leave nothing.

    Args:
        memory: of all ops.
        kept: bytes that a microbatch leaves for its backward, on all stages together.
        asked: schedule, mesh, microbatches, wrapping, recomputation.
        ranks: how many share a stage, evenly at best.
    """
    weights = {each.storage: each for each in memory.state.values()}.values()
    standing = sum(held(each, asked).total for each in weights)
    flying, kept = least_in_flight(asked), kept if asked.recompute == "none" else 0
    even = (standing + min(flying) * kept) // (asked.mesh.pipeline * ranks)
    return max(even, round(kept / ranks / sum(1 / each for each in most_in_flight(asked))))


def exchange(parameters: float, gradients: float, asked: DistributedSpec, link: Link) -> tuple[float, float]:
    """Seconds in which copies gather parameters, and in which they sum gradients."""
    copies = asked.mesh.data
    if copies == 1 or asked.wrap == "none":
        return 0.0, 0.0
    if asked.wrap == "ddp":
        return 0.0, all_reduce(gradients, copies, link) if gradients else 0.0
    return all_gather(parameters, copies, link), reduce_scatter(gradients, copies, link) if gradients else 0.0
