"""What the first rank of a job would decide, decided on a laptop and written down, so that a job runs what was inspected.

    plan(model, x, spec)    trace, share out, cut, as in a job; no rank is started      JobPlan
        .document           the stage of each op, rules, forms, ranks                   SavedJob
        .save("job.yaml")

With ``parallelize(..., plan="job.yaml")`` nothing is decided again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partitioner.distributed.pipeline.branches import owners_by_stage
from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.schedules import kind_of
from partitioner.distributed.planfile import write_job
from partitioner.distributed.predicted.auto import parts
from partitioner.distributed.predicted.bench import tensor_axis
from partitioner.distributed.predicted.choice import Choice
from partitioner.distributed.predicted.cuts import staged
from partitioner.distributed.predicted.outlook import distributed_in, outlook, without_backward
from partitioner.distributed.ranks import AXES
from partitioner.distributed.state.values import unused
from partitioner.distributed.tensor.local import Place
from partitioner.distributed.tensor.shards import sharding_of, shared
from partitioner.distributed.traced.example import example_in
from partitioner.distributed.traced.offmeta import off_meta
from partitioner.ir.cluster import Cluster
from partitioner.ir.graph import Graph
from partitioner.ir.saved_job import SavedJob, SavedRank, SavedSharding, SavedStage
from partitioner.ir.saving import saved_graph
from partitioner.ir.shared import Sharding
from partitioner.model.accept import accepted
from partitioner.model.state import all_state
from partitioner.spec.cluster import build_cluster
from partitioner.spec.discover import build_machine
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec

NOT_PLANNED = {"ranks", "timeout"}
"""What a section says that no plan depends on: the mesh has its ranks."""


@dataclass(frozen=True, eq=False)
class JobPlan:
    """What was decided for a job.

    Args:
        document: all of it.
        cut: the stages; of a tensor axis, those of one of its ranks.
        sharding: over the tensor axis, if there is one.
        choice: how ``mesh: auto`` came to its mesh.
    """

    document: SavedJob
    cut: Cut
    sharding: Sharding | None = None
    choice: Choice | None = None

    def save(self, path: str | Path) -> None:
        """Write it to a file, which takes the place of another one only once it is whole.

        Args:
            path: ends in ``.yaml`` or, for plans of more than 1 MiB, in ``.json``.

        Raises:
            SpecError: it cannot be written, or is too large for YAML.
        """
        write_job(self.document, path)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        asked = DistributedSpec(**self.document.distributed)
        yield f"{self.document.model}: {asked.mesh}, {asked.schedule}, {asked.microbatches} microbatches"
        yield from (str(each) for each in (self.choice, self.cut, self.sharding) if each is not None)
        for number, stage in enumerate(self.document.stages):
            for branch, names in enumerate(stage.branches, 1):
                yield f"  stage {number}, branch {branch}: {', '.join(names) or 'nothing'}"
        for number, rank in enumerate(self.document.ranks):
            yield f"  rank {number}: {rank.device} of host {rank.host}, stage {', '.join(map(str, rank.stages))}"


def plan(
    model: nn.Module, example_inputs: Any, spec: Spec | Mapping[str, Any] | str | Path, *, training: bool = True
) -> JobPlan:
    """Decide what a job does, in one process and without its ranks: the mesh, who has which part, the stages.

    Args:
        model: the model, in the mode in which it will run; under ``torch.device("meta")`` it needs no memory.
        example_inputs: one rank's batch; for ``mesh: auto`` the batch of the whole job.
        spec: with a section ``distributed``; its first device, or else this machine's, is what each rank is taken to have.
        training: whether a backward follows, as in `parallelize`, or none, as in `inference`.

    Raises:
        SpecError, InputError, TraceError, PlacementError: as from `parallelize`.

    Example:
        >>> import torch
        >>> deep = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        >>> found = plan(deep, torch.ones(4, 4), {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 2}})
        >>> [(stage.ops, stage.state) for stage in found.document.stages]
        [(('_0_linear',), ('0.weight', '0.bias')), (('_1_linear',), ('1.weight', '1.bias'))]
    """
    model = accepted(model, loaded=False)
    whole, wished = distributed_in(spec)
    asked, count, choice = _settled(model, example_inputs, whole, wished if training else without_backward(wished))
    place = build_machine(whole).devices[0].torch_device
    device = build_machine(whole, [place]).devices[0]
    cluster = build_cluster(whole, asked, device)
    with nullcontext() if training else torch.no_grad():
        example = off_meta(example_in(model, example_inputs, None, count))
    graph, local, sharding = example.traced.graph, example, None
    if asked.mesh.tensor > 1:
        sharding = sharding_of(example.traced, tensor_axis(asked, cluster, device), device, whole)
        local = shared(example, sharding, Place(), torch.device(place))[0]
    cut = staged(local, whole, asked, device)
    ranks = asked.mesh.branch
    owners = owners_by_stage(local.traced, cut, ranks, device) if ranks > 1 else ({},) * cut.count
    traced = saved_graph(graph)
    document = SavedJob(
        schema_version=1,
        model=graph.name,
        fingerprint=traced.digest(),
        inputs=traced.inputs,
        training=training,
        spec=beside(whole),
        distributed=section(asked),
        bound=cut.bound,
        stages=_stages(model, cut, owners, ranks),
        sharding=None if sharding is None else _sharding(graph, sharding),
        ranks=rank_rows(asked, cluster, device.kind),
    )
    return JobPlan(document, cut, sharding, choice)


def _settled(model: nn.Module, inputs: Any, spec: Spec, asked: DistributedSpec) -> tuple[DistributedSpec, int, Choice | None]:
    """Mesh and schedule; into how many microbatches the inputs are divided; how ``mesh: auto`` came to it."""
    choice = None
    count = asked.microbatches
    if asked.mesh.auto:
        found = outlook(model, inputs, spec.model_copy(update={"distributed": asked}))
        asked, count, choice = found.asked, parts(found.asked), found.choice
    kind_of(asked)
    return asked, count, choice


def beside(spec: Spec) -> dict[str, Any]:
    """What a spec says beside its section ``distributed``, without defaults."""
    return spec.model_dump(mode="json", exclude_defaults=True, exclude={"distributed"})


def section(asked: DistributedSpec) -> dict[str, Any]:
    """The section ``distributed`` as a plan has it."""
    found = asked.model_dump(mode="json", exclude_none=True, exclude={"mesh": {"auto"}, **dict.fromkeys(NOT_PLANNED, True)})
    return found | {"links": {name: figures for name, figures in found["links"].items() if figures}}


def held_by(model: nn.Module, cut: Cut) -> list[tuple[str, ...]]:
    """The keys of what each stage holds, as its ops use them; what no stage uses is with the first."""
    held: list[dict[str, None]] = [{} for _ in range(cut.count)]
    for op in cut.graph.ops:
        held[cut.stage[op.name]].update(dict.fromkeys(op.state))
    left = unused(model, cut)
    held[0].update(dict.fromkeys(key for key in all_state(model) if key in left))
    return [tuple(keys) for keys in held]


def rank_rows(asked: DistributedSpec, cluster: Cluster, device: str) -> tuple[SavedRank, ...]:
    """Where each rank is, and which stages it holds.

    Args:
        asked: mesh and schedule.
        cluster: the hosts.
        device: the kind of device that each rank has.
    """
    mesh, kind, rows = asked.mesh, kind_of(asked), []
    for rank, places in enumerate(itertools.product(*(range(getattr(mesh, axis)) for axis in AXES))):
        host, number = divmod(rank, cluster.each)
        name = device if device == "cpu" else f"{device}:{number}"
        place = dict(zip(AXES, places, strict=True))
        stages = kind.stages_of(place["pipeline"], mesh.pipeline, asked.stages_per_rank)
        rows.append(SavedRank(host=host, device=name, place=place, stages=stages))
    return tuple(rows)


def _stages(model: nn.Module, cut: Cut, owners: Sequence[Mapping[str, int]], ranks: int) -> tuple[SavedStage, ...]:
    ops: list[list[str]] = [[] for _ in range(cut.count)]
    for op in cut.graph.ops:
        ops[cut.stage[op.name]].append(op.name)
    rows = zip(cut.seconds, ops, held_by(model, cut), owners, strict=True)
    return tuple(
        SavedStage(seconds=seconds, ops=tuple(names), state=keys, branches=_branches(names, owner, ranks))
        for seconds, names, keys, owner in rows
    )


def _branches(names: Sequence[str], owner: Mapping[str, int], ranks: int) -> tuple[tuple[str, ...], ...]:
    """The ops of each rank of a branch axis but the first."""
    return tuple(tuple(name for name in names if owner[name] == rank) for rank in range(1, ranks))


def _sharding(graph: Graph, sharding: Sharding) -> SavedSharding:
    """What is not whole, by the rule and by the form."""
    ops: dict[str, tuple[str, ...]] = {}
    state: dict[str, tuple[str, ...]] = {}
    for name, rule in sharding.rules.items():
        if rule.output.kind != "R":
            ops[str(rule)] = (*ops.get(str(rule), ()), name)
    for name, form in sharding.state.items():
        if form.kind != "R":
            state[str(form)] = (*state.get(str(form), ()), graph.states[name])
    axis = sharding.axis
    return SavedSharding(bandwidth=axis.bandwidth, latency=axis.latency, halves=axis.halves, ops=ops, state=state)
