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

from partitioner.distributed.pipeline.branches import owners_of
from partitioner.distributed.pipeline.copies import refuse_copies
from partitioner.distributed.pipeline.cut import Cut, Uncut, uncut
from partitioner.distributed.pipeline.part import part_of
from partitioner.distributed.pipeline.rerun import refuse_halved
from partitioner.distributed.pipeline.segments import in_flight
from partitioner.distributed.predicted.auto import parts
from partitioner.distributed.predicted.bounds import least, line_through, room, with_bubble, with_longest, with_waits
from partitioner.distributed.predicted.branchtimes import Branches, branches_of
from partitioner.distributed.predicted.cuts import fitted, memory_in, most_standing, segments_in, within
from partitioner.distributed.predicted.loads import (
    StageLoad,
    backwards,
    held_by_a_rank,
    kept_of,
    loads_of,
    stages_of,
)
from partitioner.distributed.predicted.prediction import Loads, Outlook, predict
from partitioner.distributed.tensor.local import Place
from partitioner.distributed.tensor.shards import sharding_of, shared
from partitioner.distributed.traced.example import Example, example_in
from partitioner.distributed.traced.grown import Microbatches
from partitioner.distributed.traced.offmeta import off_meta
from partitioner.errors import PlacementError
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.cluster import Cluster
from partitioner.ir.cost import Costs
from partitioner.ir.graph import Op
from partitioner.ir.machine import Device, Machine
from partitioner.ir.memory import Memory
from partitioner.ir.shared import Axis
from partitioner.planner.cost import LOOKUPS, estimate
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
        microbatches: the examples.
    """

    model: nn.Module
    inputs: Any
    kwargs: Any
    spec: Spec
    device: Device
    cluster: Cluster
    made: dict[tuple[object, ...], Any] = field(default_factory=dict)
    too_many: dict[tuple[int, int], int] = field(default_factory=dict)
    microbatches: Microbatches = field(init=False)

    def __post_init__(self) -> None:
        self.microbatches = Microbatches(
            lambda count: off_meta(example_in(self.model, self.inputs, self.kwargs, count)), not self.spec.profile
        )

    def outlook(self, asked: DistributedSpec, count: int) -> Outlook:
        """The prediction for one way to work together, where the batch is divided into ``count`` microbatches."""
        traced = self._example(asked, count).traced
        refuse_halved(traced.graph, asked)
        cut = self._fitted(asked, count)
        keys = [dict.fromkeys(key for op in ops for key in op.state) for ops in stages_of(cut)]
        refuse_copies(asked, traced.graph, traced.state, keys)
        loads, memory = self._loads(cut, asked, count), self._memory(asked, count)
        assumed = (*self.cluster.assumed, *(f"{each} of {self.device.name}" for each in self.device.assumed))
        return predict(cut, loads, memory, asked, self.cluster, self.device.memory, assumed)

    def of_job(self, asked: DistributedSpec) -> Outlook:
        """The prediction where the batch is the whole job's. It comes of a trace, and no microbatch that was made of others."""
        count = parts(asked)
        if not self.microbatches.settle(count):
            self.made.clear()
            self.too_many.clear()
        return self.outlook(asked, count)

    def after_cut(self, asked: DistributedSpec) -> float:
        """Seconds that a step takes at least, cut as it is."""
        count = parts(asked)
        one = count, asked.mesh.tensor
        self.too_many.setdefault(one, len(self._example(asked, count).traced.graph.ops) + 1)
        cut = self._cut(asked, count)
        sent = self._once(("sent", id(cut)), lambda: [sum(op.exchange for op in ops) for ops in stages_of(cut)])
        return with_waits(cut.seconds, sent, asked) / asked.mesh.branch

    def before_cut(self, asked: DistributedSpec) -> float:
        """Seconds that a step takes at least, as it would be cut, for how long a stage is at most is known before; or 0.

        It is not where stages would be cut for what stands on a rank.
        """
        count, stages = parts(asked), asked.mesh.pipeline * asked.stages_per_rank
        one = count, asked.mesh.tensor
        ready, cap = self._uncut(asked, count), self.device.memory
        try:
            longest = self._once(("longest", *one, stages), lambda: ready.longest(stages))
        except PlacementError:
            return 0.0

        def standing() -> float:
            return most_standing(ready.graph.ops, ready.seconds, held_by_a_rank(self._memory(asked, count), asked), longest)

        if cap is not None and self._once(("standing", *self._cut_key(asked, count)), standing) > cap:
            return 0.0
        forward, exchanged = sum(ready.seconds.values()), sum(op.exchange for op in ready.graph.ops)
        return with_longest(forward, exchanged, longest, asked) / asked.mesh.branch

    def closer(self, asked: DistributedSpec) -> float:
        """Seconds that a step takes at least, before anything is cut."""
        count = parts(asked)
        seconds, ops = self._op_seconds(asked, count), self._example(asked, count).traced.graph.ops
        again = 1 if asked.recompute == "none" else 2
        longest = max((again * seconds[op.name] + backwards(seconds[op.name], op.exchange) for op in ops), default=0.0)
        exchanged = sum(op.exchange for op in ops)
        even = self._least(asked, self._seconds(asked, count), self._memory(asked, count), exchanged, 1)
        return max(even, asked.microbatches * longest)  # one rank has the longest op

    def least(self, asked: DistributedSpec) -> float:
        """Seconds that a step takes at least, before anything is shared out along a tensor axis: evenly, at best."""
        whole, count = self._undivided(asked), parts(asked)
        return self._least(asked, self._seconds(whole, count), self._memory(whole, count), 0.0, asked.mesh.tensor)

    def foreseen(self, asked: DistributedSpec) -> float:
        """Seconds that a step takes at least where its microbatches are not traced yet, but two smaller ones; or 0.

        Where ops are measured, or share threads, more rows may take less for each of them, and nothing is foreseen.
        """
        count, whole = parts(asked), self._undivided(asked)
        traced = self.microbatches.made
        known = sorted(each for each in traced if each > count)[:2]
        if count in traced or len(known) < 2 or self.spec.profile or self.device.threads_per_lane > 1:
            return 0.0
        more, fewer = known
        reach = (1 / count - 1 / more) / (1 / more - 1 / fewer)
        level = {op.name for op in self._example(whole, more).traced.graph.ops if op.target in LOOKUPS}
        seconds = (self._op_seconds(whole, fewer), self._op_seconds(whole, more))
        forward = self._once(("foreseen", count, more, fewer), lambda: line_through(*seconds, level, reach))
        return self._least(asked, forward, self._memory(whole, more), 0.0, asked.mesh.tensor)

    def _least(self, asked: DistributedSpec, forward: float, memory: Memory, exchanged: float, ranks: int) -> float:
        """Seconds at least, of what is known without the tensor axis, over so many ranks of it."""
        again = forward if asked.recompute != "none" else 0.0
        work = (forward + backwards(forward, exchanged) + again) / ranks / asked.mesh.branch
        return max(least(forward, exchanged, memory, asked, self.cluster) / ranks, with_bubble(work, asked))

    def room(self, asked: DistributedSpec) -> int:
        """Bytes that the fullest rank takes at least, however ops are shared out along a tensor axis."""
        whole, count = self._undivided(asked), parts(asked)
        return room(self._memory(whole, count), self._kept(whole, count), asked, asked.mesh.inner)

    def closer_room(self, asked: DistributedSpec) -> int:
        """Likewise, as they are."""
        count = parts(asked)
        return room(self._memory(asked, count), self._kept(asked, count), asked, asked.mesh.branch)

    def _undivided(self, asked: DistributedSpec) -> DistributedSpec:
        return asked.model_copy(update={"mesh": asked.mesh.model_copy(update={"tensor": 1})})

    def _kept(self, asked: DistributedSpec, count: int) -> int:
        """Bytes that a microbatch leaves for its backward, on all ranks of a pipeline together."""
        key = "kept", count, asked.mesh.tensor
        return self._once(key, lambda: kept_of(self._memory(asked, count), self._example(asked, count).traced.graph.ops))

    def _once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    def _example(self, asked: DistributedSpec, count: int) -> Example:
        whole = self.microbatches.of(count)
        width = asked.mesh.tensor
        return self._once(("rank", count, width), lambda: for_one_rank(whole, self.spec, asked, self.device, self.cluster))

    def _memory(self, asked: DistributedSpec, count: int) -> Memory:
        key = ("memory", count, asked.mesh.tensor)
        return self._once(key, lambda: memory_in(self._example(asked, count), self.spec))

    def _seconds(self, asked: DistributedSpec, count: int) -> float:
        """Of one microbatch, forwards."""
        return self._once(("seconds", count, asked.mesh.tensor), lambda: sum(self._op_seconds(asked, count).values()))

    def _op_seconds(self, asked: DistributedSpec, count: int) -> dict[str, float]:
        """Of each op of one microbatch, forwards."""
        costs, alone = self._costs(asked, count), replace(self.device, lanes=1)
        key = "op seconds", count, asked.mesh.tensor
        return self._once(key, lambda: {op: costs.op_time(op, alone, alone.threads_per_lane) for op in costs.ops})

    def _costs(self, asked: DistributedSpec, count: int) -> Costs:
        return self._once(
            ("costs", count, asked.mesh.tensor), lambda: _costs(self._example(asked, count), self.spec, self.device)
        )

    def _uncut(self, asked: DistributedSpec, count: int) -> Uncut:
        """What cuts are made of."""
        traced = self._example(asked, count).traced
        return self._once(("uncut", count, asked.mesh.tensor), lambda: uncut(traced, self.device, self.spec.profile))

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
            ready = self._uncut(asked, count)
            free = self._once(("free", *one, stages), lambda: ready.into(stages))
            try:
                return within(ready, free, self._memory(asked, count), asked, self.device.memory)
            except PlacementError:
                return free

        try:
            return self._once(("cut", *self._cut_key(asked, count)), make)
        except PlacementError:
            self.too_many[one] = stages
            raise

    def _fitted(self, asked: DistributedSpec, count: int) -> Cut:
        """The stages, where all that microbatches in flight keep has room if that can be."""
        cut, cap = self._cut(asked, count), self.device.memory
        if cap is None or asked.mesh.branch > 1:
            return cut
        of = self._loads(cut, asked, count), self._uncut(asked, count), self._memory(asked, count)
        known = self._once(("row", count, asked.mesh.tensor, *_again(asked)), dict[tuple[int, int], StageLoad])
        return self._once(("fitted", count, asked), lambda: fitted(cut, *of, asked, cap, known))

    def _loads(self, cut: Cut, asked: DistributedSpec, count: int) -> Loads:
        """What the stages hold and move."""

        def make() -> Loads:
            example, memory, rules = self._example(asked, count), self._memory(asked, count), self._uncut(asked, count).rules
            parts = [part_of(example.traced, cut, number).traced for number in range(cut.count * (asked.mesh.branch > 1))]
            branches = [self._branches(each, cut, asked, count) for each in parts]
            return loads_of(cut, memory, example.differentiable, branches, segments_in(cut, rules, asked))

        return self._once(("loads", id(cut), asked.mesh.branch, *_again(asked)), make)

    def _branches(self, traced: Traced, cut: Cut, asked: DistributedSpec, count: int) -> Branches:
        """A stage over the ranks of a branch axis, as `parallelize` shares it out."""
        ranks, device, costs = asked.mesh.branch, replace(self.device, lanes=1), self._costs(asked, count)
        link = self.cluster.ring(ranks, asked.mesh.tensor)

        def forward(op: Op) -> float:
            return costs.op_time(op.name, device, device.threads_per_lane)

        owner = owners_of(traced, ranks, device, set(cut.ties))
        return branches_of(traced, owner, ranks, link, forward, lambda op: backwards(forward(op), op.exchange))


def _again(asked: DistributedSpec) -> tuple[str, int]:
    """What it depends on which ops are run again together."""
    return asked.recompute, in_flight(asked) if asked.recompute == "segments" else 0


def _costs(example: Example, spec: Spec, device: Device) -> Costs:
    """What the ops of a microbatch cost, forwards."""
    graph, alone = example.traced.graph, replace(device, lanes=1)
    return profiled(graph, estimate(graph, Machine((alone,)), example.traced.state_metas), spec.profile)
