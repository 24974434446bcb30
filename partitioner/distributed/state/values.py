"""The parameters and buffers of one rank's stages, with their values, where the rank computes.

    rank 0    stage 0    model-00001.safetensors    embed, layers 0 - 3        what a rank does not hold, it does not read
    rank 1    stage 1    model-00002.safetensors    layers 4 - 7, head

There is one tensor for each key, whichever of the rank's stages use it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import nn

from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.part import Part
from partitioner.distributed.ranks import gathered, here
from partitioner.distributed.tensor.shards import Shards
from partitioner.errors import SpecError
from partitioner.model.state import all_state
from partitioner.runtime.materialise import materialise

_COPIED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""The models of which this process holds parts, and whether one of these has copies of their tensors."""

_HELD: WeakKeyDictionary[nn.Module, list[tuple[set[str], bool]]] = WeakKeyDictionary()
"""Of each of these parts: the keys of what may be learnt, and whether it is trained."""


@dataclass(frozen=True, eq=False)
class State:
    """The model's tensors, and those that were moved.

    Args:
        known: every tensor of the model, by key.
        device: where this rank computes.
        shards: which part this rank has of each, if there is a tensor axis.
        read: whether all was read from files, of each tensor this rank's part.
        copied: whether the rank has tensors of its own, also where the model's lie on the device.
        moved: by key.
    """

    known: Mapping[str, torch.Tensor]
    device: torch.device
    shards: Shards | None = None
    read: bool = False
    copied: bool = False
    moved: dict[str, torch.Tensor] = field(default_factory=dict)

    def values(self, part: Part) -> dict[str, torch.Tensor]:
        """What a part uses, by key."""
        return {key: self._here(key, self.known.get(key, tensor)) for key, tensor in part.traced.state.items()}

    def _here(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        split = self.shards is not None and key in self.shards.forms and not self.read
        if tensor.device == self.device and not split and not self.copied:
            return tensor
        if key not in self.moved:
            part = self.shards.part(key, tensor.detach()) if self.shards is not None and split else tensor.detach()
            moved = part.to(self.device, copy=self.copied)
            self.moved[key] = nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
        return self.moved[key]


def unused(model: nn.Module, cut: Cut) -> set[str]:
    """The keys of what no stage uses; it is with the first one."""
    known = all_state(model)
    used = {id(known[key]) for op in cut.graph.ops for key in op.state if key in known}
    return {key for key, tensor in known.items() if id(tensor) not in used}


def state_of(
    model: nn.Module,
    cut: Cut,
    parts: Sequence[Part],
    device: torch.device,
    whole: Mapping[str, torch.Tensor],
    weights: str | Path | None = None,
    shards: Shards | None = None,
    *,
    copied: bool = False,
) -> State:
    """The state of this rank's parts.

    Args:
        model: the whole model; what is read from ``weights`` is put into it.
        cut: where it is cut; what no stage uses is read with the first one.
        parts: this rank's.
        device: where this rank computes.
        whole: the state of the whole graph: beside the model's keys, tensors that are plain attributes of it.
        weights: a safetensors file, its index, or their folder, for a model on the meta device.
        shards: which part this rank has of each tensor, if there is a tensor axis.
        copied: whether it is to have tensors of its own.

    Raises:
        SpecError: a tensor has no value, or the weights do not fit.
    """
    wanted = {key for part in parts for key in part.traced.state}
    if weights is not None:
        if any(part.number == 0 for part in parts):
            wanted |= unused(model, cut)
        materialise(model, weights, default=str(device), only=wanted, part=None if shards is None else shards.read)
    known = all_state(model)
    plain = {key: tensor for key, tensor in whole.items() if key not in known}
    if weights is not None and shards is not None:  # of the others, the parts are read
        plain = {key: shards.part(key, tensor) for key, tensor in plain.items()}
    known = plain | known
    for part in parts:
        for key, tensor in part.traced.state.items():
            if known.get(key, tensor).is_meta:
                raise SpecError(f"{key} is on the meta device and has no value; give weights=, a safetensors file or folder")
    return State(known, device, shards, read=weights is not None, copied=copied)


def held_otherwise(model: nn.Module, parts: Sequence[Part], *, training: bool) -> bool:
    """Whether ranks that train one of a model's parts, this or one before, hold other layers than those of another one.

    What the ranks of the one learn lies on other ranks than those of the other look at, and copies that start alike would write
    it over: so these parts share no tensors. All ranks are told the same.
    """
    known = all_state(model)
    own = {key for part in parts for key in part.traced.state if key in known}
    own -= {key for key in own if isinstance(known[key], nn.Parameter) and not known[key].requires_grad}
    before = _HELD.setdefault(model, [])
    apart = any((training and held - own) or (trained and own - held) for held, trained in before)
    before.append((own, training))
    return len(before) > 1 and any(gathered(apart))


def warn_of_copies(model: nn.Module, copied: bool) -> None:
    """Tell that two parts of one model do not share values: what one of them learns, the other one never sees.

    Args:
        model: the whole model.
        copied: whether the part that is made now has copies of its tensors, or shards.
    """
    before = _COPIED.get(model)
    _COPIED[model] = copied or bool(before)
    if before is not None and _COPIED[model] and here() == 0:
        warnings.warn(
            f"this {type(model).__name__} was shared out before, and the parts do not share values (so under a tensor axis, "
            "fsdp2, on another device than the model's, or where ranks hold other layers of it): training one of them leaves "
            "the other as it was. To take over what one has learnt: load(save(folder, part), other_part)",
            stacklevel=4,
        )
