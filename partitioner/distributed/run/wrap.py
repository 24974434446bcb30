"""What makes the copies of a stage along the data axis one model: DDP averages gradients, FSDP2 shards parameters as well.

    data 0  stage 0  \
                      gradients of both are averaged, once, behind the last microbatch
    data 1  stage 0  /

DDP may compress what it sends, by a communication hook of torch's. What neither can reduce is left to `ties.gradients_summed`.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence, Set
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from partitioner.distributed.pipeline.part import Stage
from partitioner.distributed.ranks import Ranks, here
from partitioner.distributed.run.reached import all_reached
from partitioner.distributed.traced.example import Example
from partitioner.errors import SpecError
from partitioner.model.state import all_parameters
from partitioner.spec.distributed import DistributedSpec


def refuse_hook(asked: DistributedSpec, ranks: Ranks) -> None:
    """Refuse a hook where nothing would call it, and those that do not work on gloo.

    Raises:
        SpecError: says which, and what does work.
    """
    if asked.hook == "none":
        return
    if asked.wrap != "ddp" or asked.mesh.data == 1:
        raise SpecError(f"hook {asked.hook} is DDP's: it needs wrap: ddp and a data axis of 2 or more")
    if asked.hook != "fp16" and dist.get_backend(ranks.mesh.get_group("data")) == "gloo":
        why = "bfloat16 cannot be reduced there" if asked.hook == "bf16" else "it hangs there with several buckets"
        raise SpecError(f"hook {asked.hook} does not work on gloo: {why} (torch 2.13); take fp16, or none")


def refuse_synchronized(model: nn.Module, ranks: Ranks) -> None:
    """Refuse a norm that would wait for ranks which have other layers: without a group of its own, it waits for all.

    Raises:
        SpecError: names it.
    """
    apart = ranks.wide("pipeline", "branch", "tensor")
    for name, layer in model.named_modules() if apart else ():
        if isinstance(layer, nn.SyncBatchNorm) and layer.training and layer.process_group is None:
            raise SpecError(
                f"{name} is a SyncBatchNorm, which waits for every rank of the job, and ranks along the {apart[0]} axis do not "
                "run it all alike: take BatchNorm, of a microbatch's own statistics, or GroupNorm"
            )


def wrapped_for(
    modules: Sequence[Stage], asked: DistributedSpec, ranks: Ranks, twice: Collection[str], example: Example
) -> tuple[Sequence[nn.Module], set[nn.Parameter]]:
    """A rank's stages, each of which agrees with the same stage of other copies; and the parameters that are left to others.

    Args:
        modules: the stages.
        asked: the mesh, and how copies agree.
        ranks: this rank.
        twice: the keys of what two stages of any rank share.
        example: of the model, from which it is read which parameters any loss reaches.
    """
    if asked.mesh.data == 1:
        return modules, set()
    if asked.wrap == "none":
        _warn_of_copies_that_part(asked)
        return modules, set()
    apart = _reduced_apart(modules, asked, twice)
    return [_wrapped(module, asked, ranks, apart, example) for module in modules], apart


def _warn_of_copies_that_part(asked: DistributedSpec) -> None:
    if here() == 0:
        warnings.warn(
            f"wrap: none with data {asked.mesh.data}: nothing averages the gradients of the copies, and each learns from its "
            "own batches alone. Take wrap: ddp or fsdp2, or average gradients over step.ranks.mesh['data'] before each step of "
            "the optimizer",
            stacklevel=2,
        )


def _reduced_apart(modules: Iterable[Stage], asked: DistributedSpec, twice: Collection[str]) -> set[nn.Parameter]:
    """The parameters that neither DDP nor FSDP2 can reduce.

    Those that two stages of a rank share, each of which would do it: also on ranks that have one of these stages, for holders
    of a tie have it alike. And numbers and what is empty under FSDP2, which cannot shard them.
    """
    held = ((key, each) for module in modules for key, each in all_parameters(module).items())
    return {each for key, each in held if key in twice or (asked.wrap == "fsdp2" and not (each.dim() and each.numel()))}


def _wrapped(module: Stage, asked: DistributedSpec, ranks: Ranks, apart: Set[nn.Parameter], example: Example) -> nn.Module:
    """A stage that agrees with the same stage of other copies, but for ``apart``; the stage itself where that is all."""
    if not any(each.requires_grad for each in {*module.parameters()} - apart):
        return module
    if asked.wrap == "fsdp2":
        sharded: Any = fully_shard(module, mesh=ranks.mesh["data"], ignored_params={*apart})
        if hasattr(sharded, "set_reduce_scatter_unused_params"):  # not in torch 2.11
            sharded.set_reduce_scatter_unused_params(True)  # a copy's loss may leave out a result, and all send the same
        return module
    group: Any = ranks.mesh.get_group("data")
    written = module.graph.written
    ignored = [name for name, each in all_parameters(module).items() if each in apart]
    ignored += [name for name, each in module.named_buffers() if not _is_in_order(each) and f"self.{name}" not in written]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)  # type: ignore[no-untyped-call]
    looks = not all_reached(module, example)  # in each step, which costs it an exchange
    wrapped = DistributedDataParallel(module, process_group=group, find_unused_parameters=looks)
    if asked.hook == "power_sgd":
        wrapped.register_comm_hook(PowerSGDState(group), powerSGD_hook)
    elif asked.hook != "none":
        wrapped.register_comm_hook(group, fp16_compress_hook if asked.hook == "fp16" else bf16_compress_hook)
    return wrapped


def _is_in_order(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies as a new one would: not expanded, nor a row of a wider one, for DDP cannot send these."""
    return tensor.stride() == torch.empty(tensor.shape, device="meta").stride()
