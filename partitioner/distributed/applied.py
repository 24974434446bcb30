"""A plan file applied to a job: held against its spec, its model and its ranks, so that what runs is what was inspected.

    settled_by           mesh, schedule, microbatches: those of the plan, if the spec says nothing else
    refuse_other_model   the graph of a microbatch has the plan's fingerprint
    sharding_by          each rule is one of the op's ways
    owners_by            ops that must share a rank of the branch axis do
    cut_by               each op has a stage, no edge leads back, and what must stay together does
    refuse_other_ranks   hosts, devices, places, stages and keys are those of the plan

Everything that differs is an error that says what the plan has and what there is here. Memory is not reckoned again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from partitioner.distributed.jobplan import beside, held_by, rank_rows, section
from partitioner.distributed.pipeline.branches import sharing_a_rank
from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.part import Part
from partitioner.distributed.pipeline.schedules import kind_of
from partitioner.distributed.pipeline.staying import sharing_a_stage
from partitioner.distributed.predicted.auto import parts
from partitioner.distributed.predicted.outlook import Settled
from partitioner.distributed.ranks import AXES
from partitioner.distributed.tensor.replayed import replayed
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.offmeta import off_meta
from partitioner.errors import SpecError
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.cluster import Cluster
from partitioner.ir.differ import of_values
from partitioner.ir.graph import Graph
from partitioner.ir.saved_job import SavedJob
from partitioner.ir.saving import saved_graph
from partitioner.ir.shared import Sharding
from partitioner.ir.units import quote
from partitioner.ir.words import first_lines
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec

OPEN = {"schedule", "stages_per_rank", "microbatches", "wrap", "recompute"}
"""What ``mesh: auto`` chooses beside the mesh, where the spec does not say it."""

SIDES = ("in the plan", "here")


def settled_by(plan: SavedJob, spec: Spec, asked: DistributedSpec, *, training: bool = True) -> Settled:
    """What a plan says that ranks do, as `settled` gives it.

    Args:
        plan: the document.
        spec, asked: as `distributed_in` gives them; ``mesh: auto`` takes the plan's mesh.
        training: whether a backward follows.

    Raises:
        SpecError: the spec says something else, or the plan contradicts itself.
    """
    told = DistributedSpec.model_validate(plan.distributed)
    own, mine = _flat(section(told)), _flat(section(asked))
    if asked.mesh.auto:
        mine |= {name: own[name] for name in _open(asked)}
        own["ranks"], mine["ranks"] = str(told.mesh.size), str(asked.ranks or told.mesh.size)
    names = "inference", "parallelize"
    faults = [*of_values("spec:", _texts(plan.spec), _texts(beside(spec)), SIDES)]
    faults += of_values("spec: distributed", own, mine, SIDES)
    faults += of_values("the", {"call": names[plan.training]}, {"call": names[training]}, SIDES)
    _refuse("the plan is for something else than is asked for", faults)
    _refuse("the plan contradicts itself", _contradictions(plan, told))
    found = told.model_copy(update={"timeout": asked.timeout})
    return Settled(found, parts(found) if asked.mesh.auto else found.microbatches)


def _open(asked: DistributedSpec) -> set[str]:
    """What the spec leaves to the plan."""
    return {f"mesh.{axis}" for axis in {*AXES} - asked.mesh.model_fields_set} | (OPEN - asked.model_fields_set)


def _contradictions(plan: SavedJob, told: DistributedSpec) -> Iterator[str]:
    kind_of(told)
    count = told.mesh.pipeline * told.stages_per_rank
    if told.mesh.auto:
        yield "distributed.mesh is auto, and a plan says which mesh it is for"
    elif len(plan.stages) != count:
        yield f"it has {len(plan.stages)} stages, and for {told.mesh} with {told.stages_per_rank} a rank there are {count}"
    elif (plan.sharding is None) != (told.mesh.tensor == 1):
        has = "no sharding" if plan.sharding is None else "a sharding"
        yield f"it has {has}, and the tensor axis has {told.mesh.tensor} ranks"
    for number, stage in enumerate(plan.stages):
        if len(stage.branches) != told.mesh.branch - 1:
            yield (
                f"stage {number} says what {len(stage.branches) + 1} ranks of a branch axis run, and there it has "
                f"{told.mesh.branch}"
            )
        for name in sorted(set(stage.owners) - set(stage.ops)):
            yield f"stage {number} names {quote(name)} among its branches, and not among its ops"


def refuse_other_model(plan: SavedJob, graph: Graph) -> None:
    """Refuse a graph that is not the plan's: of another model, or of a batch of another size.

    Args:
        plan: the document.
        graph: of one microbatch of a whole copy.

    Raises:
        SpecError: with what differs: the model, inputs, ops, or else fingerprints.
    """
    here = saved_graph(graph)
    if (graph.name, here.digest(), here.inputs) == (plan.model, plan.fingerprint, plan.inputs):
        return
    faults = [*of_values("the", {"model": plan.model}, {"model": graph.name}, SIDES)]
    faults += of_values("input", plan.inputs, here.inputs, SIDES)
    faults += [f"op {op.name} = {op.call} is only here" for op in here.ops if op.name not in plan.stage]
    if plan.sharding is None:
        faults += [f"op {name} is only in the plan" for name in plan.stage if name not in graph.by_name]
    prints = (
        f"its ops have other arguments or shapes: fingerprint {plan.fingerprint[:16]} in the plan and {here.digest()[:16]} here"
    )
    _refuse("the plan is for another model or another batch", faults or [prints])


def sharding_by(plan: SavedJob, example: Example) -> Sharding:
    """The plan's sharding of a whole copy, each of its rules looked up among the op's ways.

    Raises:
        SpecError: as `replayed`; or the plan has none.
    """
    if plan.sharding is None:
        raise SpecError("the plan has no sharding, and the mesh has a tensor axis")
    mesh = DistributedSpec.model_validate(plan.distributed).mesh
    return replayed(off_meta(example).traced, plan.sharding, mesh.tensor)


def cut_by(plan: SavedJob, traced: Traced) -> Cut:
    """The plan's stages of a graph.

    Args:
        plan: the document.
        traced: of one microbatch; of a tensor axis, what one of its ranks runs.

    Raises:
        SpecError: an op has no stage or is none of the graph's, an edge leads to an earlier stage, or ops that must share a
            stage do not.
    """
    graph, stage = traced.graph, plan.stage
    faults = [
        f"stage {stage[name]} names {quote(name)}, which is no op of {graph.name}"
        for name in stage
        if name not in graph.by_name
    ]
    faults += [f"op {op.name} is in no stage" for op in graph.ops if op.name not in stage]
    _refuse("the plan's stages are not those of the model", faults)
    _refuse("the plan's stages cannot follow each other", _led_back(traced, stage))
    return Cut(graph, stage, tuple(each.seconds for each in plan.stages), plan.bound)


def owners_by(plan: SavedJob, part: Part, first: Collection[str]) -> dict[str, int]:
    """The rank of the branch axis of each op of a stage, as the plan has it.

    Args:
        plan: the document.
        part: the stage.
        first: keys of state that other stages have, too.

    Raises:
        SpecError: ops that must share a rank do not, or the users of what other stages have are not on the first.
    """
    owner, rules = plan.stages[part.number].owners, sharing_a_rank(part.traced, first)
    known: dict[str, str] = {}
    faults = []
    for name, group in rules.group.items():
        one = known.setdefault(group, name)
        if owner[one] != owner[name]:
            faults.append(f"ops {one} and {name} have to share a rank, and are on {owner[one]} and {owner[name]}")
        elif rules.pinned(name) and owner[name]:
            faults.append(f"op {name} is on {owner[name]}, and has to be on 0, for other stages have what it uses")
    _refuse(f"the branches of stage {part.number} cannot be run", faults)
    return owner


def _led_back(traced: Traced, stage: Mapping[str, int]) -> Iterator[str]:
    """Edges to an earlier stage; ops that write a storage which ops of another stage use, or hand over no tensor."""
    graph = traced.graph
    for (one, other), kind in graph.edges.items():
        if stage[one] > stage[other]:
            why = "reads it" if kind == "data" else "has to run after it"
            yield f"op {one} is in stage {stage[one]}, and {other}, which {why}, in stage {stage[other]}"
    first: dict[str, str] = {}
    for name, group in sharing_a_stage(graph, traced.state_metas).group.items():
        known = first.setdefault(group, name)
        if stage[known] != stage[name]:
            yield f"ops {known} and {name} have to share a stage, and are in {stage[known]} and {stage[name]}"


def refuse_other_ranks(plan: SavedJob, model: nn.Module, cut: Cut, cluster: Cluster, device: torch.device, rank: int) -> None:
    """Refuse a job whose ranks are not the plan's.

    Args:
        plan: the document.
        model: the whole model.
        cut: as `cut_by` gives it.
        cluster: the hosts of this job.
        device: where this rank computes.
        rank: its number.

    Raises:
        SpecError: a rank has another host, device, place or stages, or a stage has other keys.
    """
    told = DistributedSpec.model_validate(plan.distributed)
    rows = [_flat(each.model_dump()) for each in rank_rows(told, cluster, device.type)]
    rows[rank]["device"] = str(device)
    faults = []
    if len(rows) != len(plan.ranks):
        faults.append(f"it has rows for {len(plan.ranks)} ranks, and mesh {told.mesh} has {len(rows)}")
    for number, (own, mine) in enumerate(zip(plan.ranks, rows, strict=False)):
        faults += of_values(f"rank {number}:", _flat(own.model_dump()), mine, SIDES)
    for number, (stage, keys) in enumerate(zip(plan.stages, held_by(model, cut), strict=True)):
        faults += [f"stage {number} has {quote(key)} only in the plan" for key in stage.state if key not in keys]
        faults += [f"stage {number} has {key} only here" for key in keys if key not in stage.state]
    _refuse("the plan's ranks are not those of the job", faults)


def _flat(said: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Values below values by their path, as text, in an order that does not hang on theirs: tools that write YAML sort keys.

    >>> _flat({"wrap": "ddp", "mesh": {"data": 2}})
    {'mesh.data': '2', 'wrap': 'ddp'}
    """
    found: dict[str, str] = {}
    for name, value in said.items():
        found |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else _texts({f"{above}{name}": value})
    return dict(sorted(found.items()))


def _texts(said: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True) for name, value in sorted(said.items())
    }


def _refuse(what: str, faults: Iterable[str]) -> None:
    """One error with the first faults, if there are any."""
    lines = [*faults]
    if lines:
        advice = "Run what it was made for, or make it again: distributed.plan(model, example_inputs, spec).save(path)"
        raise SpecError("\n  ".join([f"{what}:", *first_lines(lines), advice]))
