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
from partitioner.distributed.cut import Cut, cut_into
from partitioner.distributed.example import Example, example_in
from partitioner.distributed.loads import StageLoad, held, held_by_a_rank, loads_of
from partitioner.distributed.offmeta import off_meta
from partitioner.distributed.prediction import Outlook, least, predict
from partitioner.distributed.schedules import refuse_ties_within
from partitioner.distributed.tensor.local import Place
from partitioner.distributed.tensor.shards import sharding_of, shared
from partitioner.errors import PlacementError
from partitioner.frontend.analysis.held import memory_of
from partitioner.ir.cluster import Cluster
from partitioner.ir.graph import StateMeta
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


def staged(example: Example, spec: Spec, asked: DistributedSpec, device: Device) -> Cut:
    """The model's graph in as many stages as are asked for, with room for gradients and what the optimizer keeps.

    Args:
        example: as `for_one_rank` gives it.
        spec: optimizer, profile.
        asked: mesh, schedule, wrapping.
        device: what each rank has.

    Raises:
        PlacementError: there are fewer places for cuts, or nothing fits the device's memory.
    """
    memory = held_by_a_rank(_memory(example, spec), asked) if device.memory else None
    return cut_into(example.traced, asked.mesh.pipeline * asked.stages_per_rank, device, memory=memory, profile=spec.profile)


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
        cut, loads = self._cut(asked, count)
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
        return least(self._seconds(asked, count), exchanged, self._memory(asked, count), asked, self.cluster)

    def least(self, asked: DistributedSpec) -> float:
        """Seconds that a step takes at least, before anything is shared out along a tensor axis: evenly, at best."""
        whole = asked.model_copy(update={"mesh": asked.mesh.model_copy(update={"tensor": 1})})
        return (
            least(self._seconds(whole, parts(asked)), 0.0, self._memory(whole, parts(asked)), asked, self.cluster)
            / asked.mesh.tensor
        )

    def room(self, asked: DistributedSpec) -> int:
        """Bytes that the fullest rank takes at least: all that stands, shared out evenly."""
        whole = asked.model_copy(update={"mesh": asked.mesh.model_copy(update={"tensor": 1})})
        weights = {each.storage: each for each in self._memory(whole, parts(asked)).state.values()}.values()
        return sum(held(each, asked).total for each in weights) // (asked.mesh.pipeline * asked.mesh.inner)

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
        return self._once(
            ("seconds", count, asked.mesh.tensor), lambda: _forward(self._example(asked, count), self.spec, self.device)
        )

    def _cut(self, asked: DistributedSpec, count: int) -> tuple[Cut, tuple[StageLoad, ...]]:
        """The stages; where nothing fits, those of a device with more memory."""
        mesh, capped = asked.mesh, self.device.memory is not None
        wrap = (asked.wrap, mesh.data) if capped and mesh.data > 1 else None
        stages, one = mesh.pipeline * asked.stages_per_rank, (count, mesh.tensor)
        example = self._example(asked, count)
        if stages >= self.too_many.get(one, inf):
            raise PlacementError(f"{example.traced.graph.name} cannot be cut into {stages} stages. Ask for fewer stages.")

        def make() -> tuple[Cut, tuple[StageLoad, ...]]:
            try:
                cut = staged(example, self.spec, asked, self.device)
            except PlacementError:
                if not capped:
                    raise
                cut = staged(example, self.spec, asked, replace(self.device, memory=None))
            return cut, loads_of(cut, self._memory(asked, count), example.differentiable)

        try:
            return self._once(("cut", *one, stages, wrap), make)
        except PlacementError:
            self.too_many[one] = stages
            raise


def _forward(example: Example, spec: Spec, device: Device) -> float:
    """Seconds of all ops of a microbatch, forwards."""
    graph, alone = example.traced.graph, replace(device, lanes=1)
    state = {name: StateMeta(*sizes(tensor)) for name, tensor in example.traced.state.items()}
    costs = profiled(graph, estimate(graph, Machine((alone,)), state), spec.profile)
    return costs.time(costs.ops, alone, alone.threads_per_lane)
