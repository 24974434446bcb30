"""Batch norm with ``momentum=None``, its count read as a tensor. The tracer goes into this file, as into those of a user."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

FORWARD = _BatchNorm.forward
"""What torch has for it."""

_OTHERWISE: Any = FunctionType(FORWARD.__code__, FORWARD.__globals__, FORWARD.__name__)  # another object, not replaced


def counted_in_tensors(self: Any, input: torch.Tensor) -> torch.Tensor:
    """What a batch norm's forward gives, and what it writes to rounding: the mean of all batches so far.

    Example:
        >>> layer, x = nn.BatchNorm1d(2, momentum=None), torch.tensor([[1.0, 2.0], [3.0, 6.0]])
        >>> for each in (x, 3 * x):
        ...     _ = counted_in_tensors(layer, each)
        >>> layer.running_mean, layer.num_batches_tracked
        (tensor([4., 8.]), tensor(2))
    """
    if self.momentum is not None or not self.training or not self.track_running_stats or self.num_batches_tracked is None:
        plain: torch.Tensor = _OTHERWISE(self, input)
        return plain
    self._check_input_dim(input)
    self.num_batches_tracked.add_(1)
    mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    found = nn.functional.batch_norm(input, mean, var, self.weight, self.bias, True, 1.0, self.eps)  # 1: all of the new ones
    share = 1 / self.num_batches_tracked.to(mean.dtype)
    self.running_mean.lerp_(mean, share)
    self.running_var.lerp_(var, share)
    return found
