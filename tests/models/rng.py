"""Random numbers: one generator is one resource, so its draws keep their program order on whatever lanes they run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Model, model, numbers


class TwoHeads(Model):
    """Two layers for two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)


@model
class RandomBranches(TwoHeads):
    """Both branches draw from one generator: swapped, both get the other's numbers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.left(x), self.right(x)
        return left + torch.rand_like(left), right * torch.randn_like(right)


@model
class DropoutBranches(TwoHeads):
    """Dropout in both branches: random in training mode, nothing at all in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        left = self.drop(self.left(x))
        right = F.dropout(self.right(x), 0.3, training=self.training)
        return left + right


@model
class UntouchedDraw(TwoHeads):
    """A draw that depends on no value of the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + torch.rand(6)


@model
class DrawOfBatchSize(TwoHeads):
    """Noise of the batch's size."""

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + torch.randn(x.shape[0], 6)


@model
class InplaceDraw(TwoHeads):
    """A random op in place: it writes two resources, its tensor and the generator."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.empty_like(x).uniform_(-1, 1)
        noise.add_(torch.empty_like(x).normal_())
        return self.left(x) + self.right(noise)


@model
class DeadDraw(TwoHeads):
    """A draw whose result is never used still moves the generator on for the next one."""

    def forward(self, x: Tensor) -> Tensor:
        torch.rand_like(x)
        return self.left(x) + self.right(torch.rand_like(x))


@model
class GaussianLatent(TwoHeads):
    """The sampling of a variational autoencoder: two heads meet in one draw."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, log_scale = self.left(x), self.right(x)
        return {"mean": mean, "sample": mean + torch.randn_like(mean) * log_scale.exp()}


@model
class RandomRelu(TwoHeads):
    """`rrelu` is random in training mode alone, and its name does not say so."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(self.left(x), training=self.training) + self.right(x)


@model
class StateRead(Model):
    """The forward seeds the generator itself, from its input."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(int(x.abs().sum()))
        return x + torch.rand_like(x)

    def example_inputs(self) -> tuple[object, ...]:
        return (numbers(3, 6, gradient=True),)
