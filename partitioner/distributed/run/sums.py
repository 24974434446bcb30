"""Losses that are sums over rows, by hand: the mean of the sums of microbatches and copies is a part of that of the batch.

(output - target).square().sum()            sums alone between the loss and the rows: refused
(output - target).square().sum() / rows     a division, product or mean may make a mean of it: nothing is said of it
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd.graph import get_gradient_edge

KEPT = frozenset(
    """Abs Add Alias Clamp ClampMin Clone Exp Expand Flatten Gather Index KlDiv Log LogSigmoid LogSoftmax MaskedFill MseLoss Neg
    NllLoss NllLoss2D Permute Pow Relu Reshape ReshapeAlias Rsub Select Sigmoid Slice SmoothL1Loss Softplus Squeeze Sub Sum T
    Transpose Unsqueeze UnsafeView View BinaryCrossEntropy BinaryCrossEntropyWithLogits HuberLoss ToCopy Where""".split()
)
"""Ops that divide by no number of rows, by the names of their backwards; of losses among them, if they take no mean."""

MEAN = 1
"""How torch's losses note that they take one."""


def is_sum(loss: torch.Tensor, results: Sequence[torch.Tensor], rows: int) -> bool:
    """Whether a loss is seen to be a sum over rows.

    Args:
        loss: a scalar.
        results: what it is made of; all that it reads have ``rows`` in the first dimension, or nothing is said.
        rows: at least 2.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> is_sum(x.square().sum(), [x], 2), is_sum(x.square().sum() / 2, [x], 2), is_sum(x.square().mean(), [x], 2)
        (True, False, False)
    """
    by_edge = {get_gradient_edge(each)[:2]: each for each in results if isinstance(each, torch.Tensor) and each.requires_grad}
    seen, waiting, read = set(), [get_gradient_edge(loss)[:2]], 0
    while waiting:
        edge = waiting.pop()
        if edge in seen:
            continue
        seen.add(edge)
        if edge in by_edge:
            if not by_edge[edge].dim() or len(by_edge[edge]) != rows:
                return False
            read += 1
            continue
        node = edge[0]
        if node.name().partition("Backward")[0] not in KEPT or getattr(node, "_saved_reduction", None) == MEAN:
            return False
        waiting += [(behind, place) for behind, place in node.next_functions if behind is not None]
    return read > 0
