"""What is done to a rank's part that its stages do not see, noticed before the next batch and refused.

    part.head.weight = other                      also pruned, parametrized, moved: stages go on with the one before
    part.double()                                 a tensor of another dtype than was traced
    part.head.register_forward_hook(...)          its layers hold values, and are never called
    weight.register_hook(...)                     FSDP2 does not call those of sharded parameters
    weight.register_post_accumulate_grad_hook(...)    called before the gradient is whole, for most layouts

Values that are written in place are seen, and gradients may be what the user makes of them once a step has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from partitioner.errors import InputError
from partitioner.model.state import all_state
from partitioner.spec.distributed import DistributedSpec

HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
"""Where a layer has those of its calls."""


class Touched:
    """How a part was when its stages were made.

    Args:
        part: what this rank holds, under the model's keys.
        asked: the mesh, and how copies agree.
        shared: keys of what several stages have.
        training: whether a backward follows.
    """

    def __init__(self, part: nn.Module, asked: DistributedSpec, shared: Collection[str], *, training: bool) -> None:
        self.part, self.asked, self.training = part, asked, training
        self.state = all_state(part)
        self.forms = {key: _form(each) for key, each in self.state.items()}
        self.shared = {self.state[key] for key in shared if key in self.state}
        layers = list(part.modules())
        self.hooks = [getattr(layer, each) for layer in layers for each in HOOKS]
        self.held: list[dict[str, Any]] = [
            held for layer in layers for held in (layer._parameters, layer._buffers, layer._modules)
        ]
        self.names, self.then = self._there()

    def refuse_changes(self) -> None:
        """Refuse a part that its stages are not like any more.

        Raises:
            InputError: names what was done, and what to do instead.
        """
        if not self._is_as_it_was:
            now = all_state(self.part)
            for key in {**self.state, **now}:
                self._refuse_another(key, now)
            self._refuse_hooks()
        for key, why in self._called_wrongly() if self.training else ():
            raise InputError(f"{key} has a hook on its gradient, {why}: change or read part.get_parameter({key!r}).grad then")

    @property
    def _is_as_it_was(self) -> bool:
        """Whether all tensors and layers lie where they lay, without hooks: asked in each step, so without loops."""
        names, now = self._there()
        there = names == self.names and all(map(is_, now, self.then))
        return there and not any(self.hooks) and all(_form(each) == self.forms[key] for key, each in self.state.items())

    def _there(self) -> tuple[list[Any], list[Any]]:
        """What all layers have, and under which names."""
        held = self.held
        return [*map(len, held), *chain.from_iterable(held)], [*chain.from_iterable(each.values() for each in held)]

    def _refuse_hooks(self) -> None:
        for name, layer in self.part.named_modules():
            if any(getattr(layer, each) for each in HOOKS):
                raise InputError(
                    f"{name or 'the part'} has a hook, and a part's layers are never called: register it with a layer of the "
                    "model before parallelize"
                )

    def _refuse_another(self, key: str, now: Mapping[str, torch.Tensor]) -> None:
        known, given = self.state.get(key), now.get(key)
        if given is not known:
            what = "added to" if known is None else "taken out of" if given is None else "replaced in"
            raise InputError(
                f"{key} was {what} the part since its stages were made, and they go on as it was then. Put it back and write "
                f"values in place, with torch.no_grad(): part.get_parameter({key!r}).copy_(values); add, prune, parametrize "
                "and tie before parallelize"
            )
        if known is not None and (form := _form(known)) != self.forms[key]:
            raise InputError(
                f"{key} is {_text(form)} since the stages were made, and they are for {_text(self.forms[key])}. Put it "
                "back, or parallelize a model that is so; to save values of another dtype, copy.deepcopy(part) first"
            )

    def _called_wrongly(self) -> Iterator[tuple[str, str]]:
        """The parameters that have hooks which would see something else than in one process, and why."""
        asked, count = self.asked, self.asked.microbatches
        for key, each in self.state.items():
            if each._backward_hooks and isinstance(each, DTensor):
                yield key, "which torch does not call under fsdp2; after the step it is the mean of the copies"
            if getattr(each, "_post_accumulate_grad_hooks", None):  # of parameters
                if asked.mesh.data > 1 and asked.wrap == "ddp":
                    yield key, "which is called before the copies are averaged; it is after the step"
                elif each in self.shared:
                    yield key, "which is called before the stages that have it are summed up; they are after the step"
                elif count > 1:
                    yield key, f"which is called for each of {count} microbatches; it is whole after the step"


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether a parameter has hooks on its gradient."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tuple(tensor.shape)


def _text(form: tuple[Any, ...]) -> str:
    return f"{form[0]} on {form[1]} of shape {form[2]}"
