"""Batch norm with ``momentum=None`` reads a count in Python, where a graph would end: 1 / float(num_batches_tracked)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from partitioner.frontend.capture.amended import amended
from partitioner.model.averages import counted_in_tensors


def counts_kept(root: nn.Module) -> AbstractContextManager[None]:
    """While one graph is traced of all of a call: the count stays a tensor, and no device waits for it."""
    if any(isinstance(each, _BatchNorm) and each.momentum is None for each in root.modules()):
        return amended(_BatchNorm, forward=counted_in_tensors)
    return nullcontext()
