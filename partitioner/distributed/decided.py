"""What the ranks of a job must agree on and one of them decides, for measured seconds differ; or what a plan file says of it.

tensor axis    in which of its ways each op is shared out
pipeline       the stage of each op
branch axis    the rank of each op of a stage
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from partitioner.distributed.applied import cut_by, owners_by, refuse_other_model, refuse_other_ranks, sharding_by
from partitioner.distributed.pipeline.branches import branch_of, owners_of
from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.part import Part, part_of
from partitioner.distributed.predicted.bench import tensor_axis
from partitioner.distributed.predicted.cuts import staged
from partitioner.distributed.ranks import Ranks, agree, here, together, told_by_first
from partitioner.distributed.tensor.local import Place
from partitioner.distributed.tensor.shards import Shards, sharding_of, shared
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.offmeta import off_meta
from partitioner.ir.machine import Device, Machine
from partitioner.ir.saved_job import SavedJob
from partitioner.ir.saving import saved_graph
from partitioner.ir.shared import Axis
from partitioner.model.modes import autocast_here
from partitioner.spec.cluster import build_cluster
from partitioner.spec.discover import build_machine
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec


def agree_on(spec: Spec, example: Example, saved: SavedJob | None) -> None:
    """See whether all ranks mean the same, and the plan file as well.

    Raises:
        RanksError: names each thing that differs.
        SpecError: the file is of another model.
    """
    graph, said = example.traced.graph, spec.model_dump(mode="json")
    asked = said.pop("distributed")
    fields = {f"spec: {key}": json.dumps(value) for key, value in said.items()}
    fields |= {f"spec: distributed.{key}": json.dumps(value) for key, value in asked.items()}
    model = f"{graph.name} of {len(graph.ops)} ops, {saved_graph(graph).digest()[:16]}"
    keys = [key for key, each in example.traced.state.items() if each.requires_grad] if example.differentiable else []
    trained = f"{len(keys)} parameters, {blake2b(' '.join(sorted(keys)).encode(), digest_size=4).hexdigest()}"
    modes = {"trained": trained, "autocast": autocast_here()}
    agree({"torch": torch.__version__, "partitioner": version("partitioner"), **fields, "model": model, **modes})
    if saved is not None:
        together(lambda: refuse_other_model(saved, graph))


@dataclass(frozen=True, eq=False)
class Divided:
    """A model as the ranks of a job have divided it.

    Args:
        machine: what this rank computes on.
        example: of this rank of the tensor axis.
        shards: which part of each state it has, if there is a tensor axis.
        cut: the stage of each op.
        parts: this rank's stages.
    """

    machine: Machine
    example: Example
    shards: Shards | None
    cut: Cut
    parts: list[Part]


def divided(
    model: nn.Module,
    example: Example,
    spec: Spec,
    asked: DistributedSpec,
    ranks: Ranks,
    numbers: Sequence[int],
    saved: SavedJob | None,
) -> Divided:
    """Divide a model along the tensor axis, into stages, and these along the branch axis.

    Args:
        model: the whole model.
        example: a call of it with one microbatch.
        spec, asked: what was asked for.
        ranks: this rank.
        numbers: of the stages that it holds.
        saved: a plan file, whose decisions are taken.

    Raises:
        SpecError: the model cannot be divided so, or the plan file is of other ranks.
        PlacementError: there are fewer places for cuts than it takes.
    """
    machine, shards = build_machine(spec, [str(ranks.device)]), None
    device = machine.devices[0]
    cluster = build_cluster(spec, asked, device)
    if asked.mesh.tensor > 1:
        example, shards = _of_one_rank(example, tensor_axis(asked, cluster, device), spec, ranks, device, saved)
    if saved is None:
        cut = _cut_by_first(example, spec, asked, device)
    else:
        cut = together(lambda: cut_by(saved, example.traced))
        together(lambda: refuse_other_ranks(saved, model, cut, cluster, ranks.device, here()))
    parts = together(lambda: [part_of(example.traced, cut, number) for number in numbers])
    if asked.mesh.branch > 1:
        parts = _of_one_branch(parts, cut, asked.mesh.branch, ranks, device, saved)
    return Divided(machine, example, shards, cut, parts)


def _of_one_rank(
    example: Example, axis: Axis, spec: Spec, ranks: Ranks, device: Device, saved: SavedJob | None
) -> tuple[Example, Shards]:
    """The example of this rank of the tensor axis, and which part of each state it has."""
    if saved is None:
        decided = told_by_first(
            together(lambda: sharding_of(off_meta(example).traced, axis, device, spec) if here() == 0 else None)
        )
    else:
        decided = together(lambda: sharding_by(saved, example))
    place = Place(ranks.tensor, ranks.mesh.get_group("tensor").group_name)
    return together(lambda: shared(example, decided, place, ranks.device))


def _cut_by_first(example: Example, spec: Spec, asked: DistributedSpec, device: Device) -> Cut:
    cut = together(lambda: staged(example, spec, asked, device) if here() == 0 else None)
    stage, seconds, bound = told_by_first(None if cut is None else (cut.stage, cut.seconds, cut.bound))
    return Cut(example.traced.graph, stage, seconds, bound)


def _of_one_branch(
    parts: Sequence[Part], cut: Cut, count: int, ranks: Ranks, device: Device, saved: SavedJob | None
) -> list[Part]:
    """What this rank of the branch axis runs of its stages; the first of each such axis decides."""
    ties = set(cut.ties)
    if saved is None:
        decided = together(lambda: [owners_of(part.traced, count, device, ties) for part in parts])
    else:
        decided = together(lambda: [owners_by(saved, part, ties) for part in parts])
    group = ranks.mesh.get_group("branch")
    said: list[Any] = [decided]
    dist.broadcast_object_list(said, group=group, group_src=0)
    made = zip(parts, said[0], strict=True)
    return together(
        lambda: [
            replace(part, traced=branch_of(part.traced, owner, ranks.branch, group.group_name, ranks.device))
            for part, owner in made
        ]
    )
