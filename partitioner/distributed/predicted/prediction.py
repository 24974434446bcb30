"""What one step of a job is predicted to take, for one mesh, schedule and cut: step time, bound, bubble, memory of each rank.

    1f1b, 8 microbatches, 4 ranks x 2 copies, ddp: 41.2 ms a step, at least 34.0 ms (gap 17.5%)
      bubble 27%, exchange of gradients 2.1 ms after the last backward; backward taken as 2 times forward
      rank 0: stage 0, 9.3 ms a microbatch, 1.2 GiB
      ...

The order of the schedule is played through (`timeline.py`) with each stage's own seconds and with messages at the borders.

Taken as given: a backward lasts twice as long as its forward, and each half of it as long as that. What ranks of a tensor axis
pass on takes as long backwards as forwards, and they do nothing else meanwhile; messages between stages and work go on at once.
A stage over ranks of a branch axis takes as long as the longest of each stretch between two exchanges, and these. What is run
again in a backward takes as long as its forward, for each half of one.
DDP sends its first bucket when the last backward of a stage begins, and its last one when that has ended. FSDP2 gathers the
parameters of a stage once a step and scatters its gradients after the last backward, as torch's schedules have it. The
optimizer's step and the loss are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.order import Action, order_of
from partitioner.distributed.pipeline.schedules import kind_of
from partitioner.distributed.pipeline.timeline import StageTimes, Timeline, most_kept, played
from partitioner.distributed.predicted.bounds import exchange, least
from partitioner.distributed.predicted.choice import Choice
from partitioner.distributed.predicted.communication import all_reduce, message
from partitioner.distributed.predicted.loads import BACKWARD, StageLoad, backwards, held
from partitioner.ir.cluster import Cluster
from partitioner.ir.memory import Memory
from partitioner.ir.units import format_duration, format_size
from partitioner.spec.distributed import DistributedSpec

Loads = Sequence[Sequence[StageLoad]]
"""By stage, and by rank of the branch axis."""

BUCKET = 25 * 2**20
"""Bytes of gradients that DDP sends together."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """The prediction for one step of a job.

    Args:
        cut: the stages.
        asked: mesh, schedule and microbatches.
        cluster: hosts and links.
        holds: the stages of each rank along the pipeline axis.
        memory: bytes of each of these ranks: state, gradients, what the optimizer keeps, what microbatches in flight save, what
            an op takes for itself.
        cap: bytes that a rank may use; ``None`` for no cap.
        timeline: of one copy.
        tied: seconds in which stages sum the gradients of weights that they share, after all else.
        bound: seconds that no schedule and no cut of this mesh can beat, with as many microbatches.
        assumed: the figures that nobody has given, in words.
        choice: how ``mesh: auto`` came to it.
    """

    cut: Cut
    asked: DistributedSpec
    cluster: Cluster
    holds: tuple[tuple[int, ...], ...]
    memory: tuple[int, ...]
    cap: int | None
    timeline: Timeline
    tied: float
    bound: float
    assumed: tuple[str, ...] = ()
    choice: Choice | None = None

    @property
    def microbatch(self) -> tuple[float, ...]:
        """Seconds that each rank works on one microbatch, forwards and backwards."""
        counts = self.asked.microbatches
        return tuple(busy / counts for busy in self.timeline.busy)

    @property
    def step(self) -> float:
        """Seconds of one step."""
        return self.timeline.step + self.tied

    @property
    def bubble(self) -> float:
        """The part of the time until the last backward in which ranks wait, on average: for even stages and no messages
        (p - 1) / (v m + p - 1).

        Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
        """
        return self.timeline.bubble

    @property
    def exchange(self) -> float:
        """Seconds from the last backward to the last gradient."""
        return self.step - self.timeline.span

    @property
    def excess(self) -> int:
        """Bytes that the fullest rank has too many; 0 if all fit."""
        return 0 if self.cap is None else max(0, max(self.memory) - self.cap)

    def data(self) -> dict[str, Any]:
        """The same as dictionaries, texts and numbers."""
        found = {
            "schedule": self.asked.schedule,
            "stages_per_rank": self.asked.stages_per_rank,
            "microbatches": self.asked.microbatches,
            "mesh": self.asked.mesh.model_dump(exclude={"auto"}),
            "wrap": self.asked.wrap,
            "recompute": self.asked.recompute,
            "step_seconds": self.step,
            "lower_bound": self.bound,
            "bubble": self.bubble,
            "exchange_seconds": self.exchange,
            "balance": self.cut.balance,
            "memory_cap": self.cap,
            "assumed": list(self.assumed),
            "ranks": [
                {"stages": list(stages), "microbatch_seconds": seconds, "memory": size}
                for stages, seconds, size in zip(self.holds, self.microbatch, self.memory, strict=True)
            ],
        }
        return found if self.choice is None else {**found, "auto": self.choice.data()}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.choice is not None:
            yield str(self.choice)
        asked, gap = self.asked, 1 - self.bound / self.step if self.step else 0.0
        again = "" if asked.recompute == "none" else f", {asked.recompute} run again"
        copies = f" x {asked.mesh.data} copies, {asked.wrap}" if asked.mesh.data > 1 else ""
        parts = f" x {asked.mesh.inner} of each stage" if asked.mesh.inner > 1 else ""
        took = f"{format_duration(self.step)} a step, at least {format_duration(self.bound)} (gap {gap:.1%})"
        yield f"{asked.schedule}, {asked.microbatches} microbatches, {len(self.holds)} ranks{parts}{copies}{again}: {took}"
        exchange = f", exchange of gradients {format_duration(self.exchange)} after the last backward" if self.exchange else ""
        yield f"  bubble {self.bubble:.0%}{exchange}; backward taken as {BACKWARD:g} times forward"
        yield f"  {self.cluster}"
        if self.assumed:
            yield f"  assumed: {', '.join(self.assumed)}"
        for rank, (stages, seconds, size) in enumerate(zip(self.holds, self.microbatch, self.memory, strict=True)):
            held = f"stage{'s' if len(stages) > 1 else ''} {' and '.join(map(str, stages))}"
            over = size - self.cap if self.cap is not None and size > self.cap else 0
            fits = f", {format_size(over)} more than it has" if over else ""
            yield f"  rank {rank}: {held}, {format_duration(seconds)} a microbatch, {format_size(size)}{fits}"
        yield str(self.cut)


def predict(
    cut: Cut,
    loads: Loads,
    memory: Memory,
    asked: DistributedSpec,
    cluster: Cluster,
    cap: int | None,
    assumed: tuple[str, ...] = (),
) -> Outlook:
    """What a step takes.

    Args:
        cut: the stages.
        loads: what they hold and move: of each stage, each rank of a branch axis.
        memory: of the ops of the graph, training.
        asked: mesh, schedule, microbatches, wrapping.
        cluster: hosts and links.
        cap: bytes that a rank may use.
        assumed: as in `Outlook`.

    Raises:
        SpecError: the schedule does not go with the rest.
    """
    kind, pipeline, each = kind_of(asked), asked.mesh.pipeline, asked.stages_per_rank
    order = order_of(asked.schedule, pipeline, each, asked.microbatches)
    holds = tuple(kind.stages_of(rank, pipeline, each) for rank in range(pipeline))
    holder = {stage: rank for rank, stages in enumerate(holds) for stage in stages}
    times = [_times(stage, loads, holder, asked, cluster) for stage in range(cut.count)]
    sizes = fullest(loads, asked)
    exchanged = sum(load.exchanged for stage in loads for load in stage)
    runs = 1 if asked.recompute == "none" else 2
    longest = backwards(cut.bound, min(exchanged, cut.bound)) + runs * cut.bound
    bound = max(least(sum(cut.seconds), exchanged, memory, asked, cluster), asked.microbatches * longest / asked.mesh.branch)
    tied = _tied(cut, memory, holder, asked, cluster)
    return Outlook(cut, asked, cluster, holds, sizes, cap, played(order, times), tied, bound, assumed)


def _times(stage: int, loads: Loads, holder: Mapping[int, int], asked: DistributedSpec, cluster: Cluster) -> StageTimes:
    """The seconds of a stage, and of what it sends; of the ranks of a branch axis, those of the one that exchanges most."""
    link = cluster.ring(asked.mesh.data, asked.mesh.pipeline * asked.mesh.inner)
    load = max(loads[stage], key=lambda each: each.gradients)
    gathered, reduced = exchange(load.parameters, load.gradients, asked, link)
    tail = reduced * min(1.0, BUCKET / load.gradients) if asked.wrap == "ddp" and load.gradients else reduced
    sent = _message(load.passed, stage, stage + 1, holder, asked, cluster)
    returned = _message(loads[stage - 1][0].returned, stage, stage - 1, holder, asked, cluster)
    return StageTimes(load.forward, load.backward, sent, returned, gathered, reduced, tail, load.again)


def _message(size: int, stage: int, other: int, holder: Mapping[int, int], asked: DistributedSpec, cluster: Cluster) -> float:
    """Seconds from a stage to another one; none on one rank, and none past the ends."""
    if other not in holder or holder[other] == holder[stage] or not size:
        return 0.0
    (here, there), pipeline = (holder[stage], holder[other]), asked.mesh.pipeline
    return message(size, cluster.next_stage(here if (here + 1) % pipeline == there else there, pipeline, asked.mesh.inner))


def _tied(cut: Cut, memory: Memory, holder: Mapping[int, int], asked: DistributedSpec, cluster: Cluster) -> float:
    """Seconds in which ranks sum the gradients of weights that several of them have, one weight after the other."""
    link = cluster.ring(asked.mesh.pipeline, asked.mesh.inner)
    shared = ((key, len({holder[stage] for stage in stages})) for key, stages in cut.ties.items() if key in memory.state)
    return sum(all_reduce(memory.state[key].gradient, ranks, link) for key, ranks in shared if memory.state[key].gradient)


def fullest(loads: Loads, asked: DistributedSpec) -> tuple[int, ...]:
    """Bytes of each rank along the pipeline axis when it is fullest; of the ranks of a branch axis, of the fullest one."""
    kind, pipeline, each = kind_of(asked), asked.mesh.pipeline, asked.stages_per_rank
    order = order_of(asked.schedule, pipeline, each, asked.microbatches)
    every = {storage: weight for stage in loads for load in stage for storage, weight in load.weights.items()}
    standing = {storage: held(weight, asked).total for storage, weight in every.items()}
    return tuple(
        max(
            bytes_of({stage: share[stage] for stage in kind.stages_of(rank, pipeline, each)}, actions, asked, standing)
            for share in zip(*loads, strict=True)
        )
        for rank, actions in enumerate(order)
    )


def bytes_of(
    stages: Mapping[int, StageLoad], actions: Sequence[Action], asked: DistributedSpec, standing: Mapping[int, int]
) -> int:
    """Bytes of a rank when it is fullest: while microbatches are in flight, or when FSDP2 sums gradients, in a copy of them.

    Args:
        stages: of the rank; what it does for others counts nothing.
        actions: of the rank.
        asked: mesh, wrapping.
        standing: bytes of each weight, by storage, with what is kept for it.
    """
    here, none = list(stages.values()), dict.fromkeys((action.stage for action in actions), 0)
    kept, later = ({stage: getattr(load, name) for stage, load in stages.items()} for name in ("kept", "later"))
    flying = round(most_kept(actions, none | kept, none | later)) + max(load.working for load in here)
    summed = max(load.gradients for load in here) if asked.wrap == "fsdp2" and asked.mesh.data > 1 else 0
    return sum(standing[storage] for storage in {storage for load in here for storage in load.weights}) + max(flying, summed)
