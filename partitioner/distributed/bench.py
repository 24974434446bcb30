"""A model on a bench: its traces, its parts along a tensor axis, its stages and what they hold, each of them made once.

    batch / count  ->  Example  ->  of one rank of the tensor axis  ->  Cut  ->  loads of stages  ->  Outlook

`parallelize` cuts its stages here, too, so that what is predicted is what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, TypeVar

import torch
from torch import nn

from partitioner.distributed.auto import parts
from partitioner.distributed.branches import owners_of
from partitioner.distributed.branchtimes import Branches, branches_of
from partitioner.distributed.cut import Cut, cut_into
from partitioner.distributed.example import Example, example_in
from partitioner.distributed.loads import StageLoad, backwards, held, held_by_a_rank, kept_of, loads_of
from partitioner.distributed.offmeta import off_meta
from partitioner.distributed.part import part_of
from partitioner.distributed.prediction import Outlook, least, predict, with_bubble
from partitioner.distributed.schedules import refuse_ties_within
from partitioner.distributed.segments import in_flight, least_in_flight, segments_of
from partitioner.distributed.tensor.local import Place
from partitioner.distributed.tensor.shards import sharding_of, shared
from partitioner.errors import PlacementError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.analysis.held import memory_of
from partitioner.ir.cluster import Cluster
from partitioner.ir.cost import Costs
from partitioner.ir.graph import Op, StateMeta
from partitioner.ir.machine import Device, Machine
from partitioner.ir.memory import Memory
from partitioner.ir.optimizer import optimizer_named
from partitioner.ir.shared import Axis
from partitioner.model.state import sizes
from partitioner.planner.cost import estimate
from partitioner.profile.profiled import profiled
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec

T = TypeVar("T")


def tensor_axis(asked: DistributedSpec, cluster: Cluster, device: Device) -> Axis:
    """The ranks that share one stage, and what they have to each other."""
    link = cluster.ring(asked.mesh.tensor, 1)
    return Axis(asked.mesh.tensor, link.bandwidth, link.latency, halves=device.kind != "cpu")


def for_one_rank(example: Example, spec: Spec, asked: DistributedSpec, device: Device, cluster: Cluster) -> Example:
    """The example as one rank of the tensor axis runs it: what comes after (cuts, memory, times) sees its graph alone."""
    if asked.mesh.tensor == 1:
        return example
    sharding = sharding_of(example.traced, tensor_axis(asked, cluster, device), device, spec)
    return shared(example, sharding, Place(), torch.device(device.torch_device))[0]


def staged(
    example: Example, spec: Spec, asked: DistributedSpec, device: Device, free: Cut | None = None, memory: Memory | None = None
) -> Cut:
    """The model's graph in as many stages as are asked for, with room for gradients and what the optimizer keeps.

    Stages that are cut as if there were no cap on memory are taken where they fit: then no cap changes anything.

    Args:
        example: as `for_one_rank` gives it.
        spec: optimizer, profile.
        asked: mesh, schedule, wrapping.
        device: what each rank has.
        free: as cut without a cap, if that is known.
        memory: of its ops, if that is known.

    Raises:
        PlacementError: there are fewer places for cuts, or nothing fits the device's memory.
    """
    count = asked.mesh.pipeline * asked.stages_per_rank
    cut = free or cut_into(example.traced, count, replace(device, memory=None), profile=spec.profile)
    if device.memory is None:
        return cut
    kept = held_by_a_rank(memory or _memory(example, spec), asked)
    if max(_standing(cut, kept)) <= device.memory:
        return cut
    return cut_into(example.traced, count, device, memory=kept, profile=spec.profile)


def _standing(cut: Cut, memory: Memory) -> list[int]:
    """Bytes that each stage holds for good."""
    weights: list[dict[int, int]] = [{} for _ in range(cut.count)]
    for op in cut.graph.ops:
        found = (memory.state[key] for key in op.state if key in memory.state)
        weights[cut.stage[op.name]].update((weight.storage, weight.total) for weight in found)
    return [sum(each.values()) for each in weights]


def _memory(example: Example, spec: Spec) -> Memory:
    return memory_of(example.traced, training=True, optimizer=optimizer_named(spec.optimizer))


@dataclass(eq=False)
class Bench:
    """A model on a table: each of its traces, cuts and footprints is made once.

    Args:
        model, inputs, kwargs: what is traced.
        spec: what is asked for.
        device: what each rank has.
        cluster: the ranks.

    Attributes:
        made: what has been made, by what it is.
        too_many: a number of stages into which there is no cut, by the number of microbatches and the tensor axis.
    """

    model: nn.Module
    inputs: Any
    kwargs: Any
    spec: Spec
    device: Device
    cluster: Cluster
    made: dict[tuple[object, ...], Any] = field(default_factory=dict)
    too_many: dict[tuple[int, int], int] = field(default_factory=dict)

    def outlook(self, asked: DistributedSpec, count: int) -> Outlook:
        """The prediction for one way to work together, where the batch is divided into ``count`` microbatches."""
        cut, loads = self._cut(asked, count), self._loads(asked, count)
        memory = self._memory(asked, count)
        refuse_ties_within(asked, cut.ties, {key for key, weight in memory.state.items() if weight.gradient})
        assumed = (*self.cluster.assumed, *(f"{each} of {self.device.name}" for each in self.device.assumed))
        return predict(cut, loads, memory, asked, self.cluster, self.device.memory, assumed)

    def of_job(self, asked: DistributedSpec) -> Outlook:
        """The prediction where the batch is the whole job's."""
        one = parts(asked), asked.mesh.tensor
        self.too_many.setdefault(one, len(self._example(asked, one[0]).traced.graph.ops) + 1)
        return self.outlook(asked, one[0])

    def closer(self, asked: DistributedSpec) -> float:
        """Seconds that a step takes at least, before anything is cut."""
        count = parts(asked)
        exchanged = sum(op.exchange for op in self._example(asked, count).traced.graph.ops)
        return self._least(asked, asked, exchanged, 1)

    def least(self, asked: DistributedSpec) -> float:
        """Seconds that a step takes at least, before anything is shared out along a tensor axis: evenly, at best."""
        return self._least(asked, self._undivided(asked), 0.0, asked.mesh.tensor)

    def _least(self, asked: DistributedSpec, known: DistributedSpec, exchanged: float, ranks: int) -> float:
        """Seconds at least, of what is known without the tensor axis, over so many ranks of it."""
        forward, memory = self._seconds(known, parts(asked)), self._memory(known, parts(asked))
        again = forward if asked.recompute != "none" else 0.0
        work = (forward + backwards(forward, exchanged) + again) / ranks / asked.mesh.branch
        return max(least(forward, exchanged, memory, asked, self.cluster) / ranks, with_bubble(work, asked))

    def room(self, asked: DistributedSpec) -> int:
        """Bytes that the fullest rank takes at least: all that stands, shared out evenly, and what microbatches leave.

        Of n_r microbatches in flight on rank r, K bytes each over all ranks, one has at least K / (1 / n_1 + 1 / n_2 + ..).
        """
        memory, (pipeline, inner) = self._memory(self._undivided(asked), parts(asked)), (asked.mesh.pipeline, asked.mesh.inner)
        weights = {each.storage: each for each in memory.state.values()}.values()
        standing = sum(held(each, asked).total for each in weights)
        kept = self._kept(asked) if asked.recompute == "none" else 0
        flying = least_in_flight(asked)
        return max(
            (standing + min(flying) * kept) // (pipeline * inner), round(kept / inner / sum(1 / each for each in flying))
        )

    def _undivided(self, asked: DistributedSpec) -> DistributedSpec:
        return asked.model_copy(update={"mesh": asked.mesh.model_copy(update={"tensor": 1})})

    def _kept(self, asked: DistributedSpec) -> int:
        """Bytes that a microbatch leaves for its backward, on all ranks of a copy together."""
        whole, count = self._undivided(asked), parts(asked)
        ops = self._example(whole, count).traced.graph.ops
        return self._once(("kept", count), lambda: kept_of(self._memory(whole, count), ops))

    def _once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    def _example(self, asked: DistributedSpec, count: int) -> Example:
        whole = self._once(("example", count), lambda: off_meta(example_in(self.model, self.inputs, self.kwargs, count)))
        width = asked.mesh.tensor
        return self._once(("rank", count, width), lambda: for_one_rank(whole, self.spec, asked, self.device, self.cluster))

    def _memory(self, asked: DistributedSpec, count: int) -> Memory:
        key = ("memory", count, asked.mesh.tensor)
        return self._once(key, lambda: _memory(self._example(asked, count), self.spec))

    def _seconds(self, asked: DistributedSpec, count: int) -> float:
        """Of one microbatch, forwards."""
        costs, alone = self._costs(asked, count), replace(self.device, lanes=1)
        return self._once(("seconds", count, asked.mesh.tensor), lambda: costs.time(costs.ops, alone, alone.threads_per_lane))

    def _costs(self, asked: DistributedSpec, count: int) -> Costs:
        return self._once(
            ("costs", count, asked.mesh.tensor), lambda: _costs(self._example(asked, count), self.spec, self.device)
        )

    def _cut_key(self, asked: DistributedSpec, count: int) -> tuple[object, ...]:
        """What a cut depends on."""
        capped = self.device.memory is not None
        wrap = (asked.wrap, asked.mesh.data) if capped and asked.mesh.data > 1 else None
        return count, asked.mesh.tensor, asked.mesh.pipeline * asked.stages_per_rank, wrap

    def _cut(self, asked: DistributedSpec, count: int) -> Cut:
        """The stages; where nothing fits, those of a device with more memory."""
        stages, one = asked.mesh.pipeline * asked.stages_per_rank, (count, asked.mesh.tensor)
        example = self._example(asked, count)
        if stages >= self.too_many.get(one, inf):
            raise PlacementError(f"{example.traced.graph.name} cannot be cut into {stages} stages. Ask for fewer stages.")

        def make() -> Cut:
            free = self._once(
                ("free", *one, stages), lambda: staged(example, self.spec, asked, replace(self.device, memory=None))
            )
            try:
                return staged(example, self.spec, asked, self.device, free, self._memory(asked, count))
            except PlacementError:
                return free

        try:
            return self._once(("cut", *self._cut_key(asked, count)), make)
        except PlacementError:
            self.too_many[one] = stages
            raise

    def _loads(self, asked: DistributedSpec, count: int) -> tuple[tuple[StageLoad, ...], ...]:
        """What the stages hold and move."""
        flying = in_flight(asked) if asked.recompute == "segments" else 0
        cut, traced = self._cut(asked, count), self._example(asked, count).traced

        def make() -> tuple[tuple[StageLoad, ...], ...]:
            again, branch = asked.recompute != "none", asked.mesh.branch > 1
            parts = [part_of(traced, cut, number) for number in range(cut.count)] if again or branch else []
            segments = [segments_of(part.traced, asked, flying) for part in parts] if again else []
            branches = [self._branches(part.traced, cut, asked, count) for part in parts] if branch else []
            return loads_of(cut, self._memory(asked, count), self._example(asked, count).differentiable, branches, segments)

        return self._once(("loads", *self._cut_key(asked, count), asked.mesh.branch, asked.recompute, flying), make)

    def _branches(self, traced: Traced, cut: Cut, asked: DistributedSpec, count: int) -> Branches:
        """A stage over the ranks of a branch axis, as `parallelize` shares it out."""
        ranks, device, costs = asked.mesh.branch, replace(self.device, lanes=1), self._costs(asked, count)
        link = self.cluster.ring(ranks, asked.mesh.tensor)

        def forward(op: Op) -> float:
            return costs.op_time(op.name, device, device.threads_per_lane)

        owner = owners_of(traced, ranks, device, set(cut.ties))
        return branches_of(traced, owner, ranks, link, forward, lambda op: backwards(forward(op), op.exchange))


def _costs(example: Example, spec: Spec, device: Device) -> Costs:
    """What the ops of a microbatch cost, forwards."""
    graph, alone = example.traced.graph, replace(device, lanes=1)
    state = {name: StateMeta(*sizes(tensor)) for name, tensor in example.traced.state.items()}
    return profiled(graph, estimate(graph, Machine((alone,)), state), spec.profile)
