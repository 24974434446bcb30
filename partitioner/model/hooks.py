"""Hooks for a backward as ops of a graph: what is called there is what autograd records, and calls later.

    known   = backward_hooks()              what a module's hooks know of a call: which tensors go in, and their gradients
    (x,)    = passing(known, "setup_input_hook", (x,))
    (y,)    = passing(known, "setup_output_hook", (y,))
    hooking(y)                              a hook that forward gives to what it computes

Fakes know hooks that do nothing, for what is run on them is looked at, and is no call of the model's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.hooks import BackwardHook


@dataclass(frozen=True, eq=False)
class Hooking:
    """Gives a tensor a hook, and not a copy of it: a fake has no backward of the model's."""

    held: Callable[[], Any]
    __name__ = "hooking"

    def __call__(self, tensor: torch.Tensor) -> None:
        """Give it."""
        if not (isinstance(tensor, FakeTensor) and tensor.requires_grad):
            tensor.register_hook(self.held())  # type: ignore[no-untyped-call]


def hooks_of(module: nn.Module) -> Callable[[], BackwardHook]:
    """A function that gives what a module's hooks are to know of a call: a new one, with the hooks that it has."""
    held = weakref.ref(module)

    def backward_hooks() -> BackwardHook:
        module: Any = held()
        return BackwardHook(module, module._get_backward_hooks()[0], module._get_backward_pre_hooks())

    return backward_hooks


def passing(hooks: Any, method: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Let tensors pass through the hooks of a module, on their way in or out."""
    return getattr(hooks, method)(given)  # type: ignore[no-any-return]
