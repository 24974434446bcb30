"""Whether matrices are positive definite, asked of tensors alone. The tracer goes into this file, as into those of a user."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

CHECK = type(constraints.positive_definite).check
"""What torch has for it, which branches on whether they are symmetric."""


def definite_in_tensors(self: Any, value: Tensor) -> Tensor:
    """What torch's constraint finds of a matrix, or of each in a batch.

    Example:
        >>> definite_in_tensors(None, torch.stack([torch.eye(2), -torch.eye(2)]))
        tensor([ True, False])
    """
    if value.shape[-2] != value.shape[-1]:
        return torch.zeros(value.shape[:-2], dtype=torch.bool, device=value.device)
    symmetric = torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)
    return torch.where(symmetric.all(), torch.linalg.cholesky_ex(value).info.eq(0), symmetric)
