"""Modes of gradients that forward holds, and enters later.

    context = torch.no_grad() if self.frozen else nullcontext()
    print("here a graph ends")
    with context: ...

To Dynamo `torch.no_grad` and `torch.enable_grad` are `torch.set_grad_enabled`, which sets the mode when it is made. Where a
graph ended while one was held, or was to decorate a function, it was made anew as that: from there on nothing had gradients.
And what is entered twice remembers the mode that it finds, not the one in which it was made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.ctx_manager import ContextWrappingVariable, GradModeVariable

from partitioner.frontend.capture.amended import amends


class _NoGrad(GradModeVariable):
    """What `torch.no_grad` makes: it takes no argument, and does nothing until it is entered."""

    kind: type = torch.no_grad
    mode = False

    def enter(self, tx: Any) -> Any:
        self.initial_values = [torch.is_grad_enabled()]
        self._call_func(tx, [self.mode])
        return ConstantVariable.create(None)

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        return ContextWrappingVariable.call_function(self, tx, args, kwargs)

    def fn_name(self) -> str:
        return self.kind.__name__

    def python_type(self) -> type:
        return self.kind


class _EnableGrad(_NoGrad):
    kind, mode = torch.enable_grad, True


@amends(GradModeVariable, "create")
def _create(plain: Callable[..., Any], tx: Any, value: bool, initialized: bool = False, **options: Any) -> Any:
    if initialized:
        return plain(tx, value, initialized=True, **options)
    return (_EnableGrad if value else _NoGrad)([], initial_values=[torch.is_grad_enabled()], **options)
