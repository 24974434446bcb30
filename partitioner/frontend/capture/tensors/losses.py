"""A loss whose kernel keeps what is as long as the data say, which torch has no fake for: ``ctc_loss`` of lengths in tensors.

Dynamo would end the graph there. Its result is of a form that is known, so on fakes something of that form stands for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from partitioner.frontend.capture.tensors.targets import STANDS_FOR


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """What torch's function is in a graph."""
    if not isinstance(log_probs, FakeTensor):
        return functional.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
    each = log_probs.sum((0, -1)).to(torch.promote_types(log_probs.dtype, torch.float32))  # those that are kept under autocast
    return each if reduction == "none" else each.sum()


STANDS_FOR[functional.ctc_loss] = ctc_loss
