"""What a job of many ranks is expected to take, before there is one: stages, step time, bubble and memory, on a laptop.

    spec, model, batch  ->  one microbatch traced  ->  stages cut  ->  the schedule played through       Outlook
                                                                      mesh: auto: of every way, the fastest that fits

`parallelize` asks here for its mesh and its stages, too, so that what is predicted is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partitioner.distributed.pipeline.schedules import kind_of
from partitioner.distributed.predicted.auto import Prospects, choose, parts, ways
from partitioner.distributed.predicted.bench import Bench
from partitioner.distributed.predicted.choice import Choice
from partitioner.distributed.predicted.cuts import staged
from partitioner.distributed.predicted.prediction import Outlook
from partitioner.distributed.ranks import here, together, told_by_first
from partitioner.distributed.traced.rows import rows_of
from partitioner.errors import SpecError
from partitioner.model.accept import accepted
from partitioner.model.call import example_call
from partitioner.spec.cluster import build_cluster
from partitioner.spec.discover import build_machine
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.entries import collector_off
from partitioner.spec.spec import Spec, load_spec

__all__ = ["Settled", "distributed_in", "outlook", "settled", "staged"]


def outlook(
    model: nn.Module, example_inputs: Any, spec: Spec | Mapping[str, Any] | str | Path, example_kwargs: Any = None
) -> Outlook:
    """Predict a step of a job, in one process and without the ranks.

    Args:
        model: the model, in the mode in which it will be trained.
        example_inputs: one rank's batch; for ``mesh: auto`` the batch of the whole job, for how many ranks share it is open.
        spec: with a section ``distributed``; its first device, or else this machine's, is what each rank is taken to have.
        example_kwargs: keyword arguments of the batch, by name.

    Returns:
        The prediction. What does not fit is predicted, too, and says so; for ``mesh: auto``, what does not fit is not taken.

    Raises:
        SpecError, InputError, TraceError: as from `parallelize`.
        PlacementError: there are fewer places for cuts than it takes; or ``mesh: auto`` finds nothing that fits.

    Example:
        >>> import torch
        >>> deep = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
        >>> found = outlook(deep, torch.ones(8, 64), {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4}})
        >>> len(found.holds), found.bound < found.step
        (2, True)
        >>> outlook(deep, torch.ones(8, 64), {"distributed": {"mesh": "auto", "ranks": 2}}).asked.mesh.size
        2
    """
    model = accepted(model, loaded=False)
    whole, asked = distributed_in(spec)
    device = build_machine(whole).devices[0]
    bench = Bench(model, example_inputs, example_kwargs, whole, device, build_cluster(whole, asked, device))
    if asked.mesh.auto:
        return _chosen(bench, asked)
    kind_of(asked)
    return bench.outlook(asked, asked.microbatches)


@collector_off()  # it would look in vain, again and again, at the graphs that a bench keeps
def _chosen(bench: Bench, asked: DistributedSpec) -> Outlook:
    found = list(ways(asked, bench.cluster, _rows(bench.model, bench.inputs, bench.kwargs)))
    known = bench.foreseen, bench.room, bench.least, bench.closer, bench.closer_room
    asks = Prospects(*known, bench.before_cut, bench.after_cut, bench.of_job, bench.device.memory)
    return choose(found, bench.cluster.ranks, asks)


@dataclass(frozen=True)
class Settled:
    """What the ranks of a job have settled on.

    Args:
        asked: mesh, schedule, microbatches, wrapping.
        count: into how many microbatches the example inputs are divided: one copy's, or those of all where the mesh was chosen.
        choice: how ``mesh: auto`` came to it.
    """

    asked: DistributedSpec
    count: int
    choice: Choice | None = None


def settled(model: nn.Module, example_inputs: Any, spec: Spec, asked: DistributedSpec, place: torch.device) -> Settled:
    """What a job does: what was asked for or, for ``mesh: auto``, what its first rank chooses and tells the others.

    Args:
        model, example_inputs: as for `parallelize`; for ``mesh: auto`` the batch of the whole job.
        spec, asked: as `distributed_in` gives them, and `without_backward` if none follows.
        place: what this rank computes on.

    Raises:
        As `outlook`, on the first rank; the others end.
    """
    if not asked.mesh.auto:
        return Settled(asked, asked.microbatches)

    def by_first() -> Settled | None:
        if here() > 0:
            return None
        device = build_machine(spec, [str(place)]).devices[0]
        bench = Bench(model, example_inputs, None, spec, device, build_cluster(spec, asked, device))
        found = _chosen(bench, asked)
        return Settled(found.asked, parts(found.asked), found.choice)

    return told_by_first(together(by_first))


def without_backward(asked: DistributedSpec) -> DistributedSpec:
    """What inference takes of what was asked for: of its schedule, that microbatches follow each other, however many there are.

    Raises:
        SpecError: a rank would have several stages.
    """
    if asked.stages_per_rank > 1:
        raise SpecError(f"inference takes one stage for each rank, and stages_per_rank is {asked.stages_per_rank}")
    return asked.model_copy(update={"schedule": "gpipe", "stages_per_rank": 1, "recompute": "none"})


def distributed_in(spec: Spec | Mapping[str, Any] | str | Path) -> tuple[Spec, DistributedSpec]:
    """A spec, and what it says of ranks.

    Raises:
        SpecError: it says nothing of them, or something that is for one process.
    """
    whole = load_spec(spec)
    if whole.distributed is None:
        raise SpecError("the spec has no section distributed, such as distributed: {mesh: {pipeline: 2}, microbatches: 4}")
    if whole.backward != "autograd":
        raise SpecError(f"backward: {whole.backward} is for one process; the schedule of a job has autograd run each backward")
    if whole.fullgraph is False:
        raise SpecError("fullgraph: false is for one process; stages are cut from one graph of all of a call")
    for name in ("compile_tasks", "cuda_graphs"):
        if getattr(whole, name):
            raise SpecError(f"{name}: {getattr(whole, name)} is for one process; a job calls the ops of its stages one by one")
    return whole, whole.distributed


def _rows(model: nn.Module, inputs: Any, kwargs: Any) -> int:
    """Rows of a batch."""
    return rows_of(example_call(model, inputs, kwargs))
