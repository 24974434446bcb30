"""Batch norm with ``momentum=None`` reads a count in Python, where a graph would end: 1 / float(num_batches_tracked)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any, cast

from torch import nn
from torch._dynamo.variables import UserFunctionVariable
from torch.nn.modules.batchnorm import _BatchNorm

from partitioner.frontend.capture.amended import amended
from partitioner.model.averages import FORWARD, counted_in_tensors


def counts_kept(root: nn.Module) -> AbstractContextManager[None]:
    """While one graph is traced of all of a call: the count stays a tensor, and no device waits for it."""
    if not any(isinstance(each, _BatchNorm) and each.momentum is None for each in root.modules()):
        return nullcontext()
    call, instead = UserFunctionVariable.call_function, cast(FunctionType, counted_in_tensors)

    def called(self: Any, *arguments: Any) -> Any:
        return call(UserFunctionVariable(instead) if self.fn is FORWARD else self, *arguments)

    return amended(UserFunctionVariable, call_function=called)
