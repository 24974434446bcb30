"""Modules and weights that two branches share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import Model, model


@model
class SharedNorm(Model):
    """One batch norm called in two branches: its running mean depends on which branch came first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.left(x)) + self.norm(self.right(x))


@model
class CalledTwice(Model):
    """One layer in both branches: its gradient is a sum, and its memory must be where both can read it."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(self.shared(x)) + self.right(self.shared(-x))


@model
class TiedWeights(Model):
    """Two layers of two branches hold one weight: it must stay one, under both names, wherever the branches go."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.right.weight = self.left.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


@model
class TiedEmbedding(Model):
    """A language model in small: the output layer's weight is the embedding table."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embed(tokens))))

    def example_inputs(self) -> tuple[object, ...]:
        return (torch.tensor([[1, 2, 3], [9, 0, 1]]),)


@model
class FrozenBranch(Model):
    """One branch requires no gradient: nothing may be saved for it, and its parameters must stay frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.free = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.free(x)
