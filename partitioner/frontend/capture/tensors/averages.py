"""Batch norm with ``momentum=None`` reads a count in Python, where a graph would end: 1 / float(num_batches_tracked)."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from torch import nn
from torch._dynamo.variables import UserFunctionVariable
from torch.nn.modules.batchnorm import _BatchNorm

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE
from partitioner.model.averages import FORWARD, counted_in_tensors

_IN_TENSORS = cast(FunctionType, counted_in_tensors)


def counts(root: nn.Module) -> bool:
    """Whether a model has such a norm."""
    return any(isinstance(each, _BatchNorm) and each.momentum is None for each in root.modules())


@amends(UserFunctionVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    """In one graph of all of a call the count stays a tensor, and no device waits for it."""
    return plain(UserFunctionVariable(_IN_TENSORS) if HERE.counts and self.fn is FORWARD else self, *arguments)
