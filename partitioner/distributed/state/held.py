"""What one rank holds of a model: its parameters and buffers, under every key that the model has for them.

    rank 0    wte.weight  h.0 ... h.5                  the embedding
    rank 1    h.6 ... h.11  wte.weight  lm_head.weight     tied to it: one parameter, both of its keys

What no stage uses is with the first one, so that the ranks together hold what the model does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.part import Stage, register
from partitioner.distributed.ranks import Ranks, refuse
from partitioner.distributed.run.ties import Tie
from partitioner.distributed.state.values import State, unused
from partitioner.distributed.tensor.collectives import from_first
from partitioner.distributed.tensor.shards import Shards
from partitioner.errors import InputError
from partitioner.model.state import all_state

IDLE = "_idle"
"""The name of what a copy has that would have no parameter."""


class Ranked(nn.Module):
    """What one rank holds of a model: its parameters and buffers, under the model's own keys. `Step` runs it.

    Args:
        cut: where the model is cut.
        numbers: the stages that this rank holds.
        shards: which part of each tensor it holds of them, if there is a tensor axis.
        device: where this rank computes.

    Attributes:
        in_job: whether there were other ranks when it was made.
        idle: a parameter without elements, of which the model knows nothing: what `parameters` gives where nothing is trained.
    """

    def __init__(
        self, cut: Cut, numbers: tuple[int, ...], shards: Shards | None = None, device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.cut, self.numbers, self.shards, self.in_job = cut, numbers, shards, dist.is_initialized()
        self.idle = (nn.Parameter(torch.empty(0, device=device)),)  # in a tuple, where no state_dict finds it

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """This rank's parameters; where none falls to it that is trained, also one without elements and without a gradient.

        torch's optimizers refuse an empty list, and the line that makes one is the same on all ranks, also if it takes those
        alone that require a gradient. Keys, checkpoints and `named_parameters` have nothing of it.

        Example:
            >>> empty = Ranked(Cut(None, {}, (0.0,), 0.0), (0,))
            >>> torch.optim.AdamW(empty.parameters()).step(), empty.state_dict()
            (None, OrderedDict())
        """
        found = [*super().parameters(recurse)]
        return iter(found if any(each.requires_grad for each in found) else [*found, *self.idle])

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranked:
        """The values alone, without gradients: for an average of weights (torch's `AveragedModel`), or to go back to.

        Example:
            >>> first = Ranked(Cut(None, {}, (0.0,), 0.0), (0,))
            >>> first.scale = nn.Parameter(torch.ones(1))
            >>> second = copy.deepcopy(first)
            >>> second.scale.detach().add_(1), first.scale.item(), second.cut is first.cut
            (tensor([2.]), 1.0, True)
        """
        memo |= {id(each): each for each in (self.cut, self.shards)}
        memo |= {id(each): nn.Parameter(each.detach().clone(), each.requires_grad) for each in self.parameters()}
        memo[id(self)] = made = self.__new__(type(self))
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        if not any(True for _ in made.named_parameters()):  # torch's averages ask the module around this one, and fail on none
            made.register_parameter(IDLE, made.idle[0])
        return made

    def __reduce__(self) -> NoReturn:
        """A part belongs to the ranks of a job, and is nothing without them.

        Raises:
            InputError: always.
        """
        refuse(
            "one rank's part of a model cannot be pickled: save(folder, part) on every rank writes a checkpoint of all; "
            "torch.save(part.state_dict(), path), what this rank holds",
            "saving",
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Ranked:
        """As any module. Of what FSDP2 shards, for which torch fails, what leaves all as it is: `float()`, `cpu()`.

        Raises:
            InputError: it would have another dtype, device or shape, or other values.
        """
        for key, each in self.named_parameters():
            if isinstance(each, DTensor) and (given := fn(each)) is not each:
                other = (given.dtype, given.device) != (each.dtype, each.device)
                text = f"{given.dtype} on {given.device}" if other else "new"
                refuse(
                    f"{key} would be {text}, and fsdp2 shards it as {each.dtype} on {each.device} for the stages: parallelize "
                    "a model that is so; to save values of another dtype, copy.deepcopy(part) first",
                    "changing the part",
                )
        sharded = any(isinstance(each, DTensor) for each in self.parameters())
        return self if sharded else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.pop(prefix + IDLE, None)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for key, own in self.state_dict().items():
            given, shared = state_dict.get(prefix + key), self.shards is not None and key in self.shards.forms
            if isinstance(given, torch.Tensor) and _is_other(given, own, shared=shared):
                refuse(
                    f"{key} of shape {tuple(given.shape)} is not this rank's part of it: load_state_dict takes what state_dict "
                    "gave on this rank; load(folder, part) reads what save wrote of any layout, or of a plain model",
                    "loading values",
                )
        known = state_dict if IDLE not in self._parameters else {**state_dict, prefix + IDLE: self.idle[0]}
        super()._load_from_state_dict(known, prefix, *rest)

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Not for users.

        Raises:
            InputError: always.
        """
        raise InputError("this is one rank's part of the model; call the step that parallelize gave with it, on every rank")


def _is_other(given: torch.Tensor, own: torch.Tensor, *, shared: bool) -> bool:
    """Whether a tensor is not such a part of a parameter as the rank has, of one that is shared out or sharded."""
    sharded = isinstance(own, DTensor)
    return (shared and given.shape != own.shape) or (sharded and not isinstance(given, DTensor))


def held_of(
    model: nn.Module,
    cut: Cut,
    numbers: tuple[int, ...],
    modules: list[Stage],
    shards: Shards | None = None,
    device: torch.device | None = None,
) -> Ranked:
    """This rank's state under every key that the model has for it; what no stage uses is with the first stage."""
    here = {key: tensor for module in modules for key, tensor in (*module.named_parameters(), *module.named_buffers())}
    left = unused(model, cut) if 0 in numbers else set()
    first = {id(tensor): key for key, tensor in reversed(all_state(model).items())}
    held = Ranked(cut, numbers, None if shards is None else shards.under_all_keys(model), device)
    for key, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):  # a module's extra state
            continue
        known = first.get(id(tensor), key)
        if known in here:
            register(held, key, here[known])
        elif key in left:
            register(held, key, tensor)
    for path, module in held.named_modules():
        module.training = model.get_submodule(path).training
    return held


def start_alike(modules: list[Stage], ties: Iterable[Tie], ranks: Ranks, state: State) -> None:
    """Copies of the model begin with the values of the first, and a tie with those of its first rank, whatever the seeds.

    Parts along the tensor axis are those of its first rank's tensors.
    """
    held = {key: tensor for module in modules for key, tensor in module.state_dict(keep_vars=True).items()}
    if state.shards is not None and not state.read:
        for key, tensor in held.items():
            state.shards.begin(key, tensor.detach(), state.known.get(key, tensor))
    if ranks.sizes["data"] > 1:
        for tensor in held.values():
            from_first(tensor.detach(), ranks.mesh.get_group("data"))
    for tie in ties:
        if tie.key in held:
            from_first(held[tie.key].detach(), tie.group)
