"""A value that transformers of torch read from a tensor in Python, where a graph would end, and need not read: whether their
mask is the causal one. It is a hint, for the mask itself says so; taken is what ``is_causal`` says. Attention is equal to
rounding.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.modules import transformer

from partitioner.frontend.capture.amended import amended


def unread(model: nn.Module) -> AbstractContextManager[None]:
    """While a call of a model is looked at: its transformers do not look at their masks."""
    if any(isinstance(each, nn.TransformerEncoder | nn.TransformerDecoder) for each in model.modules()):
        return amended(transformer, _detect_is_causal_mask=_is_causal)
    return nullcontext()


def _is_causal(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True
