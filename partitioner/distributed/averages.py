"""Batch norm with ``momentum=None``, whose running statistics are the mean of those of all batches that it has seen.

    torch's          1 / float(num_batches_tracked)    a number that Python reads from a tensor: the graph would end there
    here             1 / num_batches_tracked           a tensor where the statistics are; no rank waits for its device

A graph has numbers for good, so what counts calls must be a tensor in it. Statistics are equal to rounding, results in bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from partitioner.frontend.capture.amended import amended

_FORWARD = _BatchNorm.forward


@contextmanager
def counted_in_tensors(model: nn.Module) -> Iterator[None]:
    """While a call of a model is looked at: its batch norms count in tensors.

    Example:
        >>> layer, x = nn.BatchNorm1d(2, momentum=None), torch.tensor([[1.0, 2.0], [3.0, 6.0]])
        >>> with counted_in_tensors(layer):
        ...     for each in (x, 3 * x):
        ...         _ = layer(each)
        >>> layer.running_mean, layer.num_batches_tracked
        (tensor([4., 8.]), tensor(2))
    """
    if any(isinstance(each, _BatchNorm) and each.momentum is None for each in model.modules()):
        with amended(_BatchNorm, forward=_forward):
            yield
    else:
        yield


def _forward(self: Any, input: torch.Tensor) -> torch.Tensor:
    if self.momentum is not None or not self.training or not self.track_running_stats or self.num_batches_tracked is None:
        return _FORWARD(self, input)
    self._check_input_dim(input)
    self.num_batches_tracked.add_(1)
    mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    found = nn.functional.batch_norm(input, mean, var, self.weight, self.bias, True, 1.0, self.eps)  # 1: all of the new ones
    share = 1 / self.num_batches_tracked.to(mean.dtype)
    self.running_mean.lerp_(mean, share)
    self.running_var.lerp_(var, share)
    return found
