"""What optimizers may not do over ranks, and would do without a word; noticed before they step.

Parameters in whose place a rank trains others: an optimizer that holds the old ones would train nothing.

    optimizer = AdamW(model.parameters())        made first
    part, step = parallelize(model, ...)         fsdp2, a tensor axis, another device: the parameters of part are others
    step(batch)                                  they get gradients
    optimizer.step()                             an error; of the part's own parameters it is right

It is noticed where it would go wrong: an optimizer is to step with an old parameter that has no gradient, and the one in its
place has one.

Optimizers that look at more than one element at a time, where a rank has but a part of that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from partitioner.distributed.ranks import refuse
from partitioner.model.state import all_parameters

DOING = "in a step of the optimizer"

WHOLE_MODEL, WHOLE_MATRICES = (torch.optim.LBFGS,), (torch.optim.Adafactor, torch.optim.Muon)
"""torch's optimizers that look at more than one element."""

NOT_SHARDED, NOT_SHARDED_IF_FUSED = (torch.optim.Adafactor, torch.optim.Rprop), (torch.optim.Adagrad, torch.optim.SGD)
"""Those for whose ops torch's sharded tensors have no rule, always or with ``fused=True``."""

_IN_PLACE: Any = WeakTensorKeyDictionary()
"""By an old parameter: its key, and the new one, as long as that lives."""

_PARTS: Any = WeakTensorKeyDictionary()
"""Of a parameter that is one rank's part of a whole: its key."""

_SOME: Any = WeakTensorKeyDictionary()
"""The parameters of a model of which other ranks have more."""


def refuse_partial_views(part: nn.Module, parts: Collection[str], *, alone: bool) -> None:
    """From now on, refuse steps of optimizers that would take what a rank holds for all there is.

    Args:
        part: what is trained.
        parts: the keys of the parameters of which ranks of a tensor axis have a part each.
        alone: whether this rank holds the whole model.
    """
    for key, parameter in all_parameters(part).items():
        if key in parts:
            _PARTS[parameter] = key
        if not alone:
            _SOME[parameter] = key
    _register()


def refuse_old_parameters(before: Mapping[str, torch.Tensor], part: nn.Module) -> None:
    """From now on, refuse steps of optimizers that hold parameters which are not trained any more.

    Args:
        before: the model's parameters, by key, as an optimizer may have got them.
        part: what is trained now, under the same keys.
    """
    for key, new in all_parameters(part).items():
        old = before.get(key)
        if isinstance(old, nn.Parameter) and old is not new:
            _IN_PLACE[old] = key, ref(new)
            _register()


@cache
def _register() -> None:
    register_optimizer_step_pre_hook(_see)


def _see(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Called before each step of any optimizer.

    Raises:
        InputError: it holds old parameters, or would take parts for wholes.
    """
    name = type(optimizer).__name__
    held = [each for group in optimizer.param_groups for each in group["params"]]
    if isinstance(optimizer, WHOLE_MODEL) and any(each in _SOME for each in held):
        refuse(f"{name} looks at the whole model at once, and a rank has some of it: take another optimizer", DOING)
    if isinstance(optimizer, WHOLE_MATRICES) and (keys := [_PARTS[each] for each in held if each in _PARTS]):
        refuse(
            f"{name} looks at whole matrices, and of {keys[0]} this rank has a part: take an optimizer that "
            "looks at one element at a time (SGD, AdamW), or a mesh without a tensor axis",
            DOING,
        )
    fused = isinstance(optimizer, NOT_SHARDED_IF_FUSED) and any(each["fused"] for each in optimizer.param_groups)
    if (fused or isinstance(optimizer, NOT_SHARDED)) and any(isinstance(each, DTensor) for each in held):
        refuse(
            f"{name}{' with fused=True' if fused else ''} does not work on what fsdp2 shards: "
            f"{'leave out fused=True' if fused else 'take another optimizer (SGD, AdamW)'}, or take ddp",
            DOING,
        )
    found = [known for each in held if each.grad is None and (known := _IN_PLACE.get(each)) is not None]
    keys = [key for key, new in found if (now := new()) is not None and now.grad is not None]
    if keys:
        refuse(
            f"the optimizer would train nothing: it holds {keys[0]} and {len(keys) - 1} more of the model's parameters as they "
            "were before parallelize, and ranks train others in their place (fsdp2, a tensor axis, another device). "
            f"Make it of the part: {name}(part.parameters()), after parallelize",
            DOING,
        )
