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
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from partitioner.compile import emit, plan_of
from partitioner.distributed.cut import Cut
from partitioner.distributed.example import Example, example_of, first_part
from partitioner.distributed.outlook import distributed_in, staged
from partitioner.distributed.part import Part, Stage, part_of, register
from partitioner.distributed.ranks import Ranks, agree, connect, together
from partitioner.distributed.schedules import kind_of, schedule
from partitioner.distributed.step import Batches, Loss, Step
from partitioner.distributed.ties import ties_of
from partitioner.errors import InputError, SpecError
from partitioner.ir.graph import TensorMeta
from partitioner.ir.saving import saved_graph
from partitioner.model.call import example_call
from partitioner.model.state import all_state
from partitioner.spec.discover import build_machine
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec


class Ranked(nn.Module):
    """What one rank holds of a model: its parameters and buffers, under the model's own keys. `Step` runs it.

    Args:
        cut: where the model is cut.
        numbers: the stages that this rank holds.
    """

    def __init__(self, cut: Cut, numbers: tuple[int, ...]) -> None:
        super().__init__()
        self.__dict__["cut"], self.__dict__["numbers"] = cut, numbers

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Not for users.

        Raises:
            InputError: always.
        """
        raise InputError("this is one rank's part of the model; call the step that parallelize gave with it, on every rank")


@dataclass(frozen=True, eq=False)
class _Planned:
    """What a rank knows before it asks the others."""

    example: Example
    cut: Cut


def parallelize(
    model: nn.Module,
    example_inputs: Any,
    spec: Spec | Mapping[str, Any] | str | Path,
    loss_fn: Callable[..., torch.Tensor],
) -> tuple[Ranked, Step]:
    """Share a model out over the ranks of a job that torchrun started. Every rank calls it, with the same arguments.

    Args:
        model: the whole model, the same on every rank. It is traced in the mode, train or eval, that it is in.
        example_inputs: one rank's batch, as `partition` takes it; its rows are divided into microbatches.
        spec: a spec with a section ``distributed``; `partitioner.spec.distributed` says what it may hold.
        loss_fn: the loss of the model's output or, with two arguments, of it and a target: a scalar, the mean over rows.

    Returns:
        This rank's part, whose parameters go to an optimizer; and the step.

    Raises:
        SpecError, InputError, TraceError, PlacementError: on the first rank; the others end.
        RanksError: the ranks were not asked the same, or one of them failed.

    Example:
        spec = {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4}}
        model, step = parallelize(model, x, spec, nn.functional.cross_entropy)
        loss = step((x, target))
    """
    whole, asked = distributed_in(spec)
    kind = kind_of(asked)
    ranks = connect(asked)
    planned = together(lambda: _planned(model, example_inputs, whole, asked, ranks))
    example, cut = planned.example, planned.cut
    agree(_facts(whole, example, cut))
    numbers = kind.stages_of(ranks.pipeline, asked.mesh.pipeline, asked.stages_per_rank)
    batches = Batches(example, asked.microbatches, ranks.device)
    state = _State(example, ranks.device)
    parts = together(lambda: [part_of(example.traced, cut, number) for number in numbers])
    modules = together(lambda: [_module(part, state, batches, whole, ranks) for part in parts])
    holders = {key: {_holder(stage, asked, kind.v) for stage in stages} for key, stages in cut.ties.items()}
    together(lambda: _refuse_ties_within(asked, cut, numbers))
    ties = ties_of(ranks, {key: sorted(places) for key, places in holders.items() if len(places) > 1})
    stages = [
        _stage(_wrapped(module, asked, ranks), part, cut, example, ranks) for module, part in zip(modules, parts, strict=True)
    ]
    held = _held(model, cut, numbers, modules, ranks)
    loss = Loss(loss_fn, batches)
    step = Step(
        model=model,
        ranks=ranks,
        schedule=schedule(asked, kind, stages, loss),
        batches=batches,
        loss=loss,
        ties=ties,
        parameters=dict(held.named_parameters()),
        last=_holder(cut.count - 1, asked, kind.v),
        first_here=0 in numbers,
        sharded=asked.wrap == "fsdp2" and asked.mesh.data > 1,
    )
    return held, step


def _planned(model: nn.Module, inputs: Any, spec: Spec, asked: DistributedSpec, ranks: Ranks) -> _Planned:
    call = example_call(model, inputs, None)
    if call is None or not call.tensors:
        raise InputError("example_inputs has no tensor; give one rank's batch")
    example = example_of(model, first_part(call, asked.microbatches))
    machine = build_machine(spec, [str(ranks.device)])
    return _Planned(example, staged(example, spec, asked, machine.devices[0]))


def _facts(spec: Spec, example: Example, cut: Cut) -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "partitioner": version("partitioner"),
        "spec": spec.model_dump_json(),
        "model": saved_graph(example.traced.graph).digest(),
        "stages": str(cut),
    }


class _State:
    """The state of this rank's stages where the rank computes: one tensor for each key, whichever stages use it."""

    def __init__(self, example: Example, device: torch.device) -> None:
        self.example, self.device = example, device
        self.moved: dict[str, torch.Tensor] = {}

    def of(self, part: Part) -> dict[str, torch.Tensor]:
        """What a part uses, by key."""
        return {key: self._here(key, tensor) for key, tensor in part.traced.state.items()}

    def _here(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self.device:
            return tensor
        if key not in self.moved:
            moved = tensor.detach().to(self.device)
            self.moved[key] = nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
        return self.moved[key]


def _module(part: Part, state: _State, batches: Batches, spec: Spec, ranks: Ranks) -> Stage:
    """A stage, planned for this rank's device."""
    run = emit(plan_of(part.traced, build_machine(spec, [str(ranks.device)]), spec), spec)
    return Stage(part, run, state.of(part), batches)


def _wrapped(module: Stage, asked: DistributedSpec, ranks: Ranks) -> nn.Module:
    """What agrees with the same stage of other copies of the model."""
    if asked.mesh.data == 1 or asked.wrap == "none" or not any(each.requires_grad for each in module.parameters()):
        return module
    if asked.wrap == "fsdp2":
        fully_shard(module, mesh=ranks.mesh["data"])
        return module
    return DistributedDataParallel(module, process_group=ranks.mesh.get_group("data"))


def _stage(module: nn.Module, part: Part, cut: Cut, example: Example, ranks: Ranks) -> PipelineStage:
    """torch's stage, told the shapes of all that passes, so that it need not find out."""
    metas = dict(part.graph.inputs) | {op.name: op.outputs[0] for op in example.traced.graph.ops if op.outputs}
    metas |= {name: meta for name, meta in example.traced.graph.inputs if meta is not None}
    number = torch.zeros(1, dtype=torch.int64)

    def like(names: Iterable[str]) -> tuple[torch.Tensor, ...]:
        return tuple(_empty(metas[name], name in example.differentiable) for name in names)

    inputs = like(part.received) if part.number else (number,)
    return PipelineStage(
        module,
        part.number,
        cut.count,
        ranks.device,
        input_args=inputs,
        output_args=like(part.passed),
        group=ranks.mesh.get_group("pipeline"),
    )


def _empty(meta: TensorMeta | None, differentiable: bool) -> torch.Tensor:
    assert meta is not None
    return torch.empty(meta.shape, dtype=meta.dtype, device="meta", requires_grad=differentiable)


def _holder(stage: int, asked: DistributedSpec, v: bool) -> int:
    """The place along the pipeline axis of the rank that holds a stage."""
    ranks = asked.mesh.pipeline
    return min(stage, 2 * ranks - 1 - stage) if v else stage % ranks


def _refuse_ties_within(asked: DistributedSpec, cut: Cut, numbers: tuple[int, ...]) -> None:
    twice = [key for key, stages in cut.ties.items() if len(set(stages) & set(numbers)) > 1]
    if asked.wrap != "none" and asked.mesh.data > 1 and twice:
        raise SpecError(
            f"two stages of one rank share {twice[0]}, and {asked.wrap} would reduce its gradient twice: take a schedule with "
            "one stage for each rank"
        )


def _held(model: nn.Module, cut: Cut, numbers: tuple[int, ...], modules: list[Stage], ranks: Ranks) -> Ranked:
    """This rank's state under every key that the model has for it; what no stage uses is with the first stage."""
    here = {key: tensor for module in modules for key, tensor in (*module.named_parameters(), *module.named_buffers())}
    used = {key for op in cut.graph.ops for key in op.state}
    first = {id(tensor): key for key, tensor in reversed(all_state(model).items())}
    held = Ranked(cut, numbers)
    held.training = model.training
    for key, tensor in model.state_dict(keep_vars=True).items():
        known = first.get(id(tensor), key)
        if known in here:
            register(held, key, here[known])
        elif known not in used and 0 in numbers:
            register(held, key, tensor)
    return held
