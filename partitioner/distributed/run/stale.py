"""A whole model of which ranks train parts: what it has itself is what it was, but for what this rank trains in place.

part, step = parallelize(model, ...)
step(batch)
torch.save(model.state_dict(), ...)      a warning: half of that never learnt anything
save("run", part)                        all that ranks have learnt, under the model's own keys
"""

from __future__ import annotations

import warnings
from weakref import WeakKeyDictionary

from torch import nn

from partitioner.distributed.ranks import here

_STALE: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"""Of models that were trained in parts: the key of a tensor that they have as it was; ``""`` where there is none."""

REMEDY = "save(folder, part) writes what all ranks have learnt, and load(folder, model) reads it into a plain model"


def train_begins(model: nn.Module, part: nn.Module) -> None:
    """From now on, tell those who read the whole model's state that ranks train another.

    Args:
        model: the whole model.
        part: what this rank trains of it.
    """
    if model in _STALE:
        return
    own = {id(each) for each in part.parameters()}
    for layer in model.modules():  # the state of one layer may be read alone
        left = (key for key, each in layer.named_parameters() if each.requires_grad and id(each) not in own)
        if not stale(layer):  # of another model that has it, too
            _STALE[layer] = next(left, "")
            if _STALE[layer]:
                layer.register_state_dict_pre_hook(_warn)  # type: ignore[no-untyped-call]


def stale(model: nn.Module) -> str:
    """The key of a parameter of a model that other tensors are trained in place of, if there is one."""
    return _STALE.get(model, "")


def _warn(model: nn.Module, prefix: str, keep_vars: bool) -> None:
    key = stale(model)
    if key and not keep_vars and not prefix:
        warnings.warn(
            f"rank {here()} reads the state of the whole {type(model).__name__}, of which it trains a part, or other tensors "
            f"in place of the model's: {key} is as it was. {REMEDY}",
            stacklevel=4,
        )
