"""From a model, on every rank, to this rank's part of it and a step that all ranks make together.

    ranks    = connect(spec)                    torch.distributed, a DeviceMesh
    example  = example_of(model, microbatch)    one graph; the structure of arguments and results
    cut      = cut_into(graph, stages)          where each op runs, what passes
    parts    = part_of(graph, cut, number)      this rank's stages, planned and emitted like any model
    stages   = PipelineStage(DDP(Stage))        torch's engine
    step     = Step(schedule)

Before the stages are made, the ranks see whether they all mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from partitioner.distributed.applied import settled_by
from partitioner.distributed.batch.alike import alike_along
from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.batch.touched import Touched
from partitioner.distributed.batch.watch import Watch
from partitioner.distributed.decided import Divided, agree_on, divided
from partitioner.distributed.loss.called import refuse_no_loss
from partitioner.distributed.loss.left import warn_of_left
from partitioner.distributed.loss.loss import Loss
from partitioner.distributed.loss.mixing import warn_of_mixing
from partitioner.distributed.pipeline.copies import refuse_stages
from partitioner.distributed.pipeline.halves import SplitStage
from partitioner.distributed.pipeline.part import Part, Stage
from partitioner.distributed.pipeline.rerun import run_of
from partitioner.distributed.pipeline.schedules import Kind, kind_of, schedule
from partitioner.distributed.planfile import read_job
from partitioner.distributed.predicted.outlook import distributed_in, settled, without_backward
from partitioner.distributed.ranks import Ranks, agree, connect, first_speaks, join, together, told
from partitioner.distributed.run.forward import Forward
from partitioner.distributed.run.merging import merging_of
from partitioner.distributed.run.optimizers import refuse_old_parameters, refuse_partial_views
from partitioner.distributed.run.step import Step
from partitioner.distributed.run.ties import Tie, held_twice, ties_of
from partitioner.distributed.run.wrap import refuse_hook, refuse_synchronized, wrapped_for
from partitioner.distributed.state.held import Ranked, held_of, start_alike
from partitioner.distributed.state.values import State, held_otherwise, state_of, warn_of_copies
from partitioner.distributed.tensor.shards import Shards
from partitioner.distributed.traced.example import example_in
from partitioner.errors import InputError
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.graph import TensorMeta
from partitioner.model.accept import accepted
from partitioner.model.state import all_state
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec


def parallelize(
    model: nn.Module,
    example_inputs: Any,
    spec: Spec | Mapping[str, Any] | str | Path,
    loss_fn: Callable[..., torch.Tensor],
    weights: str | Path | None = None,
    plan: str | Path | None = None,
    count_fn: Callable[..., Any] | None = None,
) -> tuple[Ranked, Step]:
    """Share a model out over the ranks of a job that torchrun started. Every rank calls it, with the same arguments.

    Args:
        model: the whole model, the same on every rank. It is traced in the mode, train or eval, that it is in.
        example_inputs: one rank's batch, as `partition` takes it; its rows are divided into microbatches.
        spec: a spec with a section ``distributed``; `partitioner.spec.distributed` says what it may hold.
        loss_fn: the loss of the model's output or, with two arguments, of it and a target: a scalar, the mean over rows.
        weights: of a model that was built under ``torch.device("meta")``: a safetensors file, its index, or their folder. Each
            rank reads what it holds.
        plan: a file that `plan(...).save` wrote: what it says is checked and done, and nothing is decided again.
        count_fn: of how many things ``loss_fn`` gives the mean, if not of rows: a function of a microbatch's target or, where
            ``loss_fn`` takes none, of the model's arguments, such as ``lambda target: (target != -100).sum()``. Without it a
            loss that is divided by another number in one microbatch than in another is refused, when that is seen.

    Returns:
        This rank's part, whose parameters go to an optimizer; and the step.

    Raises:
        SpecError, InputError, TraceError, PlacementError: on the first rank; the others end.
        RanksError: the ranks were not asked the same, or one of them failed.

    Example:
        spec = {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4}}
        model, step = parallelize(model, x, spec, nn.functional.cross_entropy)
        loss = step((x, target))
        step.clip_grad_norm_(1.0)  # of the whole model; torch's own sees what this rank holds
    """
    refuse_no_loss(loss_fn, count_fn)
    wired = stages(model, example_inputs, spec, weights, plan)
    loss = Loss(loss_fn, wired.batches, count_fn)
    step = Step(
        ranks=wired.ranks,
        schedule=schedule(wired.asked, wired.kind, wired.stages, loss),
        batches=wired.batches,
        loss=loss,
        ties=wired.ties,
        part=wired.held,
        stages=wired.held.cut.count,
        last=wired.kind.holder(wired.held.cut.count - 1, wired.asked.mesh.pipeline),
        first_here=0 in wired.held.numbers,
        sharded=wired.asked.wrap == "fsdp2" and wired.asked.mesh.data > 1,
        apart=wired.apart,
        shards=wired.shards,
        alike=alike_along(wired.asked, wired.held, () if wired.shards is None else wired.shards.forms),
    )
    return wired.held, step


def inference(
    model: nn.Module,
    example_inputs: Any,
    spec: Spec | Mapping[str, Any] | str | Path,
    weights: str | Path | None = None,
    plan: str | Path | None = None,
) -> tuple[Ranked, Forward]:
    """Share a model out over ranks for inference: `parallelize` without a loss and a backward.

    Args:
        model: the whole model, the same on every rank; usually in eval mode.
        example_inputs: one rank's batch; its rows are divided into microbatches.
        spec: as for `parallelize`, with one stage for each rank; of its schedule only microbatches are left, and one will do.
        weights, plan: as for `parallelize`.

    Returns:
        This rank's part; and a function of a batch that gives the model's output on the rank of the last stage.

    Raises:
        As `parallelize`.

    Example:
        model, forward = inference(model.eval(), x, {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4}})
        output = forward(x)
    """
    wired = stages(model, example_inputs, spec, weights, plan, training=False)
    engine = ScheduleGPipe(wired.stages[0], wired.asked.microbatches, output_merge_spec=wired.merging)
    return wired.held, Forward(wired.ranks, engine, 0 in wired.held.numbers, wired.batches, wired.shards)


@dataclass(frozen=True, eq=False)
class Wired:
    """A rank's part of a model, ready for a loop of one's own.

    Args:
        asked: mesh, schedule, microbatches, wrapping.
        kind: the schedule, and who holds which stage.
        ranks: this rank.
        batches: what stages read: fill it before each step; stages are called with numbers of microbatches.
        ties: parameters that other ranks hold, too; `ties.gradients_summed`, around a step, sums theirs.
        apart: parameters that DDP or FSDP2 leave alone; it averages theirs.
        stages: of torch, this rank's; for any schedule of torch's.
        held: this rank's parameters and buffers under the model's keys.
        shards: which part of each this rank has, if there is a tensor axis.
        merging: how results of microbatches are put together, without a backward.
    """

    asked: DistributedSpec
    kind: Kind
    ranks: Ranks
    batches: Batches
    ties: list[Tie]
    apart: set[nn.Parameter]
    stages: list[PipelineStage]
    held: Ranked
    shards: Shards | None = None
    merging: tuple[Any, ...] = ()


def stages(
    model: nn.Module,
    example_inputs: Any,
    spec: Spec | Mapping[str, Any] | str | Path,
    weights: str | Path | None = None,
    plan: str | Path | None = None,
    *,
    training: bool = True,
) -> Wired:
    """This rank's stages, for users who have their own schedule or loop; `parallelize` is this and a `Step`.

    Args:
        model, example_inputs, spec, weights, plan: as for `parallelize`.
        training: whether a backward follows.

    Raises:
        As `parallelize`.

    Example:
        wired = stages(model, x, {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4}})
        engine = ScheduleGPipe(wired.stages[0], 4, loss_fn=lambda given, to: loss(given[0], to) / 4, scale_grads=False)
        numbers, parameters = torch.arange(4), dict(wired.held.named_parameters())
        wired.batches.fill(x, target)
        with gradients_summed(wired.ties, wired.ranks, parameters, wired.apart):  # partitioner.distributed.run.ties
            engine.step(*([numbers] if 0 in wired.held.numbers else []), number=numbers, target=target)
    """
    with first_speaks():
        model = accepted(model, loaded=False)
        if training and not torch.is_grad_enabled():
            raise InputError(
                "stages for training are made where gradients are off, and would have none: do it outside of no_grad() and "
                "inference_mode(); for outputs alone, call inference"
            )
        before = all_state(model)
        whole, wished = distributed_in(spec)
        wished = wished if training else without_backward(wished)
        saved = None if plan is None else read_job(plan)
        place = join(wished)
    agree({"plan": "none" if saved is None else saved.digest()[:16]})
    if saved is None:
        wish = settled(model, example_inputs, whole, wished, place)
    else:
        wish = together(lambda: settled_by(saved, whole, wished, training=training))
    asked, count = wish.asked, wish.count
    with first_speaks():
        kind = kind_of(asked)
    ranks = connect(asked)
    together(lambda: refuse_hook(asked, ranks))
    together(lambda: refuse_synchronized(model, ranks))
    with nullcontext() if training else torch.no_grad():
        example = together(lambda: example_in(model, example_inputs, None, count))
        merging = () if training else together(lambda: merging_of(model, example, asked.microbatches))
    parts = asked.microbatches * (asked.mesh.data if training else 1)
    warn_of_mixing(model, example, parts)
    warn_of_left(model, example, parts)
    agree_on(whole, example, saved)
    numbers = kind.stages_of(ranks.pipeline, asked.mesh.pipeline, asked.stages_per_rank)
    found = divided(model, example, whole, asked, ranks, numbers, saved)
    batches = Batches(model, found.example, asked.microbatches, ranks.device)
    modules, state = _modules(model, example.traced, found, whole, asked, batches, weights, training=training)
    holders = {key: [kind.holder(each, asked.mesh.pipeline) for each in users] for key, users in found.cut.ties.items()}
    ties = ties_of(ranks, holders)
    with told(ranks, "sharing the model out"):
        start_alike(modules, ties, ranks, state)
        warn_of_copies(model, bool(state.moved) or (training and asked.wrap == "fsdp2" and asked.mesh.data > 1))
        twice = held_twice(holders)
        wrapped, apart = wrapped_for(modules, asked, ranks, twice, found.example) if training else (modules, set())
    made = [_stage(module, part, found, ranks) for module, part in zip(wrapped, found.parts, strict=True)]
    ranks.groups.needed_by(*modules)
    held = held_of(model, found.cut, numbers, modules, found.shards, ranks.device)
    touched = Touched(held, asked, {tie.key for tie in ties} | held_twice(holders), training=training)
    batches.watch = Watch(model, found.example, held, modules, touched, traceable=weights is None)
    if training:
        refuse_old_parameters(before, held)
        forms = () if found.shards is None else found.shards.forms
        refuse_partial_views(held, forms, alone=asked.mesh.data == ranks.mesh.size())
    return Wired(asked, kind, ranks, batches, ties, apart, made, held, found.shards, merging)


def _modules(
    model: nn.Module,
    traced: Traced,
    found: Divided,
    spec: Spec,
    asked: DistributedSpec,
    batches: Batches,
    weights: str | Path | None,
    *,
    training: bool,
) -> tuple[list[Stage], State]:
    """This rank's stages, planned and emitted like any model, and the state that they have."""
    parts, shards = found.parts, found.shards
    copied = held_otherwise(model, parts, training=training)
    state = together(lambda: state_of(model, found.cut, parts, batches.device, traced.state, weights, shards, copied=copied))
    draws = shards.draws if shards else None
    runs = together(lambda: [run_of(part.traced, found.machine, spec, asked, draws) for part in parts])
    modules = [Stage(part, run, state.values(part), batches) for part, run in zip(parts, runs, strict=True)]
    together(lambda: refuse_stages(asked, modules if training else ()))
    return modules, state


def _stage(module: nn.Module, part: Part, found: Divided, ranks: Ranks) -> PipelineStage:
    """torch's stage, told the shapes of all that passes, so that it need not find out."""
    example, number = found.example, torch.zeros(1, dtype=torch.int64)
    metas = example.traced.graph.metas

    def like(names: Iterable[str]) -> tuple[torch.Tensor, ...]:
        return tuple(_empty(metas[name], name in example.differentiable) for name in names)

    inputs = like(part.received) if part.number else (number,)
    return SplitStage(
        module,
        part.number,
        found.cut.count,
        ranks.device,
        input_args=inputs,
        output_args=like(part.passed),
        group=ranks.mesh.get_group("pipeline"),
    )


def _empty(meta: TensorMeta | None, differentiable: bool) -> torch.Tensor:
    assert meta is not None
    return torch.empty(meta.shape, dtype=meta.dtype, device="meta", requires_grad=differentiable)
