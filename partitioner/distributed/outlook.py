"""What a job of many ranks is expected to take, before there is one: stages, step time, bubble and memory, on a laptop.

    1f1b, 8 microbatches, 4 ranks x 2 copies: 41.2 ms a step, at least 34.0 ms (gap 17.5%)
      bubble 27%: of that the last of 4 stages waits for its first microbatch, and the first for its last
      rank 0: 9.3 ms a microbatch, 1.2 GiB    stages 0 and 4
      ...

A stage's backward is taken to last twice as long as its forward, and transfers to be hidden behind work; gradients that copies
exchange come at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from partitioner.distributed.cut import Cut, cut_into
from partitioner.distributed.example import Example, example_in
from partitioner.distributed.schedules import Kind, kind_of
from partitioner.errors import SpecError
from partitioner.frontend.analysis.held import memory_of
from partitioner.ir.machine import DEFAULT_LINK, Device
from partitioner.ir.memory import Memory, Weight
from partitioner.ir.optimizer import optimizer_named
from partitioner.ir.units import format_duration, format_size
from partitioner.spec.discover import build_machine
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec, load_spec

BACKWARD = 2.0
"""How much longer a stage's backward is taken to last than its forward."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """The prediction for one step of a job.

    Args:
        cut: the stages.
        asked: mesh, schedule and microbatches.
        holds: the stages of each rank along the pipeline axis.
        memory: bytes of each of these ranks: state, gradients, what the optimizer keeps, and what microbatches in flight save.
        exchange: seconds in which copies average the gradients of the fullest rank.
    """

    cut: Cut
    asked: DistributedSpec
    holds: tuple[tuple[int, ...], ...]
    memory: tuple[int, ...]
    exchange: float

    @property
    def microbatch(self) -> tuple[float, ...]:
        """Seconds that each rank works on one microbatch, forwards and backwards."""
        return tuple((1 + BACKWARD) * sum(self.cut.seconds[stage] for stage in stages) for stages in self.holds)

    @property
    def bubble(self) -> float:
        """The part of a step in which a rank waits, where all stages are even: (p - 1) / (v m + p - 1).

        Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
        """
        ranks, chunks = len(self.holds), self.asked.microbatches * self.asked.stages_per_rank
        return (ranks - 1) / (chunks + ranks - 1)

    @property
    def step(self) -> float:
        """Seconds of one step: the slowest rank's work, what fills and drains the pipeline, the exchange at the end."""
        slowest, v = max(self.microbatch), self.asked.stages_per_rank
        return self.asked.microbatches * slowest + (len(self.holds) - 1) * slowest / v + self.exchange

    @property
    def bound(self) -> float:
        """Seconds that no cut into so many stages can beat: the work shared out evenly, or one microbatch's way through all."""
        work = (1 + BACKWARD) * sum(self.cut.seconds)
        return max(self.asked.microbatches * work / len(self.holds), work)

    def data(self) -> dict[str, Any]:
        """The same as dictionaries, texts and numbers."""
        return {
            "schedule": self.asked.schedule,
            "microbatches": self.asked.microbatches,
            "mesh": self.asked.mesh.model_dump(),
            "step_seconds": self.step,
            "lower_bound": self.bound,
            "bubble": self.bubble,
            "balance": self.cut.balance,
            "ranks": [
                {"stages": list(stages), "microbatch_seconds": seconds, "memory": size}
                for stages, seconds, size in zip(self.holds, self.microbatch, self.memory, strict=True)
            ],
        }

    def __str__(self) -> str:
        asked, gap = self.asked, 1 - self.bound / self.step if self.step else 0.0
        copies = f" x {asked.mesh.data} copies, {asked.wrap}" if asked.mesh.data > 1 else ""
        took = f"{format_duration(self.step)} a step, at least {format_duration(self.bound)} (gap {gap:.1%})"
        lines = [f"{asked.schedule}, {asked.microbatches} microbatches, {len(self.holds)} ranks{copies}: {took}"]
        lines.append(f"  bubble {self.bubble:.0%}, for even stages; backward taken as {BACKWARD:g} times forward")
        for rank, (stages, seconds, size) in enumerate(zip(self.holds, self.microbatch, self.memory, strict=True)):
            held = f"stage{'s' if len(stages) > 1 else ''} {' and '.join(map(str, stages))}"
            lines.append(f"  rank {rank}: {held}, {format_duration(seconds)} a microbatch, {format_size(size)}")
        return "\n".join([*lines, str(self.cut)])


def outlook(
    model: nn.Module, example_inputs: Any, spec: Spec | Mapping[str, Any] | str | Path, example_kwargs: Any = None
) -> Outlook:
    """Predict a step of a job, in one process and without the ranks.

    Args:
        model: the model, in the mode in which it will be trained.
        example_inputs: one rank's batch.
        spec: with a section ``distributed``; its first device, or else this machine's, is what each rank is taken to have.
        example_kwargs: keyword arguments of the batch, by name.

    Raises:
        SpecError, InputError, TraceError, PlacementError: as from `parallelize`.

    Example:
        >>> import torch
        >>> deep = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
        >>> found = outlook(deep, torch.ones(8, 64), {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4}})
        >>> len(found.holds), f"{found.bubble:.0%}"
        (2, '20%')
    """
    whole, asked = distributed_in(spec)
    kind = kind_of(asked)
    example = example_in(model, example_inputs, example_kwargs, asked.microbatches)
    machine = build_machine(whole)
    device = machine.devices[0]
    cut = staged(example, whole, asked, device)
    memory = memory_of(example.traced, training=True, optimizer=optimizer_named(whole.optimizer))
    ranks = asked.mesh.pipeline
    holds = tuple(kind.stages_of(rank, ranks, asked.stages_per_rank) for rank in range(ranks))
    return Outlook(cut, asked, holds, tuple(_bytes(cut, memory, kind, asked, holds)), _exchange(cut, memory, asked, holds))


def distributed_in(spec: Spec | Mapping[str, Any] | str | Path) -> tuple[Spec, DistributedSpec]:
    """A spec, and what it says of ranks.

    Raises:
        SpecError: it says nothing of them.
    """
    whole = load_spec(spec)
    if whole.distributed is None:
        raise SpecError("the spec has no section distributed, such as distributed: {mesh: {pipeline: 2}, microbatches: 4}")
    return whole, whole.distributed


def staged(example: Example, spec: Spec, asked: DistributedSpec, device: Device) -> Cut:
    """The model's graph in as many stages as are asked for, with room for gradients and what the optimizer keeps."""
    memory = memory_of(example.traced, training=True, optimizer=optimizer_named(spec.optimizer)) if device.memory else None
    return cut_into(example.traced, asked.mesh.pipeline * asked.stages_per_rank, device, memory=memory, profile=spec.profile)


def _bytes(cut: Cut, memory: Memory, kind: Kind, asked: DistributedSpec, holds: tuple[tuple[int, ...], ...]) -> list[int]:
    """Of each rank, when it is fullest."""
    sizes = []
    for rank, stages in enumerate(holds):
        ops = [op for op in cut.graph.ops if cut.stage[op.name] in stages]
        saved = {number for op in ops for number in memory.ops[op.name].saved if memory.storages[number].origin != "state"}
        values = sum(memory.storages[number].bytes for number in saved) + sum(memory.ops[op.name].kept for op in ops)
        flying = kind.in_flight(rank, asked.mesh.pipeline, asked.stages_per_rank, asked.microbatches)
        sizes.append(sum(each.total for each in _weights(cut, memory, stages)) + round(values * flying / len(stages)))
    return sizes


def _weights(cut: Cut, memory: Memory, stages: tuple[int, ...]) -> list[Weight]:
    """The state that some stages use; what shares a storage once."""
    keys = {key for op in cut.graph.ops if cut.stage[op.name] in stages for key in op.state}
    return list({memory.state[key].storage: memory.state[key] for key in keys if key in memory.state}.values())


def _exchange(cut: Cut, memory: Memory, asked: DistributedSpec, holds: tuple[tuple[int, ...], ...]) -> float:
    """Ring all-reduce of the fullest rank's gradients over a default link: twice its bytes, but for one part in all copies."""
    copies = asked.mesh.data
    if copies == 1 or asked.wrap == "none":
        return 0.0
    most = max(sum(each.gradient for each in _weights(cut, memory, stages)) for stages in holds)
    return 2 * (copies - 1) / copies * most / DEFAULT_LINK.bandwidth
