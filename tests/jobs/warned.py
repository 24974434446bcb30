"""What is heard in three steps of two copies, whose loss warns in each of them."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from partitioner import distributed

X, TARGET = torch.ones(4, 4), torch.zeros(4, 1)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Says that it is called."""
    warnings.warn("called", stacklevel=1)
    return nn.functional.mse_loss(output, target)


def answer() -> list[str]:
    """The texts that one hears who has Python say each warning once for each place."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        _, step = distributed.parallelize(nn.Linear(4, 1), X, {"distributed": {"mesh": {"data": 2}, "timeout": 60}}, loss)
        for _ in range(3):
            step((X, TARGET))
    return [str(each.message) for each in heard]
