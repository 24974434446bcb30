"""Classes of tensors that say themselves what functions do with them."""

from __future__ import annotations

from typing import Any

import torch


def has_own_rules(value: Any) -> bool:
    """Whether a value is of a class of tensors that overrides functions; torch's own classes do not count."""
    kind = type(value)
    if kind is torch.Tensor or not isinstance(value, torch.Tensor) or kind.__module__.startswith("torch."):
        return False
    return kind.__torch_function__ not in (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
