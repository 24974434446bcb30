"""Losses that hold the rows of a batch against each other: contrastive ones, mined triplets, the root of a mean, hardest rows.

mean over rows       d loss / d row 0 is made of row 0 alone          the mean over microbatches is the batch's
all pairs            d loss / d row 0 changes with the other rows     it is another loss, of fewer pairs
the hardest three    an op chooses among rows by their values         it is another loss, of each one's hardest
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.graph import Node

from partitioner.distributed.run.between import Between

CHOOSING = frozenset("Amax Amin Aminmax Cummax Cummin Kthvalue Max Median Min Mode Nanmedian Sort Topk".split())
"""Ops that give the largest, the middle or the least of a dimension, by the names of their backwards."""

MOST = 2**24
"""Elements of the results beyond which nobody looks: what is recorded is as large."""


def compares_rows(loss: torch.Tensor, found: Between, results: Sequence[torch.Tensor], rows: int) -> bool:
    """Whether an op chooses among rows, or the gradient of the first row changes with other rows, to first order.

    Args:
        loss: a scalar, whose graph is kept.
        found: what lies between it and the results.
        results: what it is made of; those count that have a gradient and, in the first dimension, ``rows``.
        rows: of a microbatch; of one alone nothing is said.

    Returns:
        ``False`` also where that cannot be said: for large results, and ops that have no gradient of their gradient.

    Example:
        >>> from partitioner.distributed.run.between import between
        >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> mean, hardest = x.square().mean(), x.square().sum(1).max()
        >>> [compares_rows(loss, between(loss, [x]), [x], 2) for loss in (mean, mean.sqrt(), hardest)]
        [False, True, True]
        >>> torch.autograd.grad(mean, x)[0].tolist()
        [[1.0], [2.0]]
    """
    trained = [each for each in results if each.requires_grad and each.dim() and len(each) == rows]
    if not trained:
        return False
    if rows > 1 and any(_chooses(node, rows) for node in found.nodes):
        return True
    if sum(each.numel() for each in trained) > MOST:
        return False
    try:
        changes = _changes(loss, trained)
    except (RuntimeError, NotImplementedError):  # an op has no gradient of its gradient
        return False
    own, others = (max((part.abs().max().item() for part in parts if part.numel()), default=0.0) for parts in changes)
    return others > 1e-6 * own


def _changes(loss: torch.Tensor, trained: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Of the first row's gradient, seen from a direction drawn at random: by the first row, and by the others."""
    slopes = torch.autograd.grad(loss, trained, create_graph=True, allow_unused=True)
    drawn = torch.Generator().manual_seed(0)
    seen = [
        (slope[0] * torch.rand(slope[0].shape, generator=drawn).to(slope)).sum()
        for slope in slopes
        if slope is not None and slope.requires_grad
    ]
    if not seen:
        return [], []
    found = torch.autograd.grad(torch.stack(seen).sum(), trained, retain_graph=True, allow_unused=True)  # for the step's own
    return [each[:1] for each in found if each is not None], [each[1:] for each in found if each is not None]


def _chooses(node: Node, rows: int) -> bool:
    """Whether an op chooses by value along a first dimension that holds rows, or several of each."""
    if node.name().partition("Backward")[0] not in CHOOSING:
        return False
    sizes = getattr(node, "_saved_self_sym_sizes", None) or node._saved_self.shape  # type: ignore[attr-defined]
    dim = getattr(node, "_saved_dim", None)
    dims = dim if isinstance(dim, tuple) else () if dim is None else (dim,)
    first = not dims or any(each % 2**64 in (0, 2**64 - len(sizes)) for each in dims)  # torch notes them without their sign
    return first and bool(sizes) and sizes[0] % rows == 0
