"""Values that layers of torch read from a tensor in Python, where a graph would end, and need not read.

    batch norm, momentum=None    1 / float(num_batches_tracked)         the same as a tensor; no rank waits for its device
    transformer, with a mask     whether it is the causal one, a hint   the mask itself says so, unless is_causal is given

Statistics, and what attention gives, are equal to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm

from partitioner.frontend.capture.amended import amended

_FORWARD = _BatchNorm.forward


@contextmanager
def unread(model: nn.Module) -> Iterator[None]:
    """While a call of a model is looked at: its layers read no values in Python.

    Example:
        >>> layer, x = nn.BatchNorm1d(2, momentum=None), torch.tensor([[1.0, 2.0], [3.0, 6.0]])
        >>> with unread(layer):
        ...     for each in (x, 3 * x):
        ...         _ = layer(each)
        >>> layer.running_mean, layer.num_batches_tracked
        (tensor([4., 8.]), tensor(2))
    """
    with ExitStack() as stack:
        if any(isinstance(each, _BatchNorm) and each.momentum is None for each in model.modules()):
            stack.enter_context(amended(_BatchNorm, forward=_counted_in_tensors))
        if any(isinstance(each, nn.TransformerEncoder | nn.TransformerDecoder) for each in model.modules()):
            stack.enter_context(amended(transformer, _detect_is_causal_mask=_is_causal))
        yield


def _counted_in_tensors(self: Any, input: torch.Tensor) -> torch.Tensor:
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


def _is_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
