"""Losses that hold the rows of a batch against each other: contrastive ones, mined triplets, the root of a mean.

mean over rows     d loss / d row 0 is made of row 0 alone          the mean over microbatches is the batch's
all pairs          d loss / d row 0 changes with the other rows     it is another loss, of fewer pairs
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

MOST = 2**24
"""Elements of the results beyond which nobody looks: what is recorded is as large."""


def compares_rows(loss: torch.Tensor, results: Sequence[torch.Tensor], rows: int) -> bool:
    """Whether the gradient of the first row changes with other rows, to first order.

    Args:
        loss: a scalar, whose graph is kept.
        results: what it is made of; those count that have a gradient and, in the first dimension, ``rows``.
        rows: at least 2.

    Returns:
        ``False`` also where that cannot be said: for large results, and ops that have no gradient of their gradient.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> mean = x.square().mean()
        >>> compares_rows(mean, [x], 2), compares_rows(mean.sqrt(), [x], 2), torch.autograd.grad(mean, x)[0].tolist()
        (False, True, [[1.0], [2.0]])
    """
    trained = [each for each in results if each.requires_grad and each.dim() and len(each) == rows]
    if not trained or sum(each.numel() for each in trained) > MOST:
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
