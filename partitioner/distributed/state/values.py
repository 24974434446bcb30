"""The parameters and buffers of one rank's stages, with their values, where the rank computes.

    rank 0    stage 0    model-00001.safetensors    embed, layers 0 - 3        what a rank does not hold, it does not read
    rank 1    stage 1    model-00002.safetensors    layers 4 - 7, head

There is one tensor for each key, whichever of the rank's stages use it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(eq=False)
class _Shared:
    """A part of a model that this process holds.

    Args:
        held: the keys of what this rank has of it.
        learnt: the keys of what its training changes, on any rank.
        copied: whether it has copies of the model's tensors.
    """

    held: set[str]
    learnt: set[str]
    copied: bool = False


_SHARED: WeakKeyDictionary[nn.Module, list[_Shared]] = WeakKeyDictionary()
"""The models of which this process holds parts, and these. Models may have layers in common: tensors are compared, not keys."""


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
    """Whether ranks that train this part, or one before, hold other layers of it than those of another one.

    What the ranks of the one learn lies on other ranks than those of the other look at, and copies that start alike would write
    it over: so these parts share no tensors. All ranks are told the same.
    """
    known = all_state(model)
    learnt = {key for key, each in known.items() if each.requires_grad or not isinstance(each, nn.Parameter)}
    new = _Shared({key for part in parts for key in part.traced.state if key in known}, learnt if training else set())
    held, changed = _tensors(model, new.held), _tensors(model, new.learnt)
    apart = False
    for other, each in _all_shared():
        theirs = _tensors(other, each.held)
        apart = apart or bool((theirs - held) & changed or (held - theirs) & _tensors(other, each.learnt))
    _SHARED.setdefault(model, []).append(new)
    return any(gathered(apart))


def warn_of_copies(model: nn.Module, copied: bool) -> None:
    """Tell that two parts do not share values: what one of them learns, the other one never sees.

    Args:
        model: the whole model; `held_otherwise` was asked of it.
        copied: whether the part that is made now has copies of its tensors, or shards.
    """
    new = _SHARED[model][-1]
    new.copied = copied
    known, learnt = _tensors(model, all_state(model)), _tensors(model, new.learnt)
    met: set[int] = set()
    for other, each in _all_shared():
        if each is not new and (copied or each.copied):
            met |= learnt & _tensors(other, all_state(other)) | known & _tensors(other, each.learnt)
    if met and here() == 0:
        key = next(key for key, each in all_state(model).items() if id(each) in met)
        warnings.warn(
            f"{key} of this {type(model).__name__} was shared out before, and the parts do not share values (so under a tensor "
            "axis, fsdp2, on another device than the model's, or where ranks hold other layers of it): training one of them "
            "leaves the other as it was. To take over what one has learnt: load(save(folder, part), other_part); where that is "
            "a part of another model, load it into the plain model and make its part anew",
            stacklevel=4,
        )


def _all_shared() -> list[tuple[nn.Module, _Shared]]:
    return [(model, each) for model, shared in _SHARED.items() for each in shared]


def _tensors(model: nn.Module, keys: Iterable[str]) -> set[int]:
    """Which tensors a model has under some keys now."""
    known = all_state(model)
    return {id(known[key]) for key in keys if key in known}
