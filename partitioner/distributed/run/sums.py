"""Losses that are sums over rows, by hand: the mean of the sums of microbatches and copies is a part of that of the batch.

(output - target).square().sum()            sums alone between the loss and the rows: refused
(output - target).square().sum() / rows     a division, product or mean may make a mean of it: nothing is said of it
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partitioner.distributed.run.between import Between

KEPT = frozenset(
    """Abs Add Alias Clamp ClampMin Clone Exp Expand Flatten Gather Index KlDiv Log LogSigmoid LogSoftmax MaskedFill MseLoss Neg
    NllLoss NllLoss2D Permute Pow Relu Reshape ReshapeAlias Rsub Select Sigmoid Slice SmoothL1Loss Softplus Squeeze Sub Sum T
    Transpose Unsqueeze UnsafeView View BinaryCrossEntropy BinaryCrossEntropyWithLogits HuberLoss ToCopy Where""".split()
)
"""Ops that divide by no number of rows, by the names of their backwards; of losses among them, if they take no mean."""

MEAN = 1
"""How torch's losses note that they take one."""


def is_sum(found: Between, results: Sequence[torch.Tensor], rows: int) -> bool:
    """Whether a loss is seen to be a sum over rows.

    Args:
        found: what lies between it and the results.
        results: what it is made of; all that it reads have ``rows`` in the first dimension, or nothing is said.
        rows: at least 1.

    Example:
        >>> from partitioner.distributed.run.between import between
        >>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> [is_sum(between(loss, [x]), [x], 2) for loss in (x.square().sum(), x.square().sum() / 2, x.square().mean())]
        [True, False, False]
    """
    read = [results[place] for place in found.reached]
    of_rows = bool(read) and all(each.dim() and len(each) == rows for each in read)
    return of_rows and all(
        node.name().partition("Backward")[0] in KEPT and getattr(node, "_saved_reduction", None) != MEAN for node in found.nodes
    )
