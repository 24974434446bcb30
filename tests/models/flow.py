"""Control flow, hooks and parts that one mode never runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import Model, model


@model
class DataDependent(Model):
    """The path depends on a value: a graph, a decision in Python, another graph."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.up(x)
        return self.down(x)


class Router(nn.Module):
    """A part whose path depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.expert(x) if bool(x.mean() > 0) else x


@model
class HiddenControlFlow(Model):
    """The same, deep in a part: all but that part can still be partitioned, if it is taken whole."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.routers = nn.ModuleList([Router()])

    def forward(self, x: Tensor) -> Tensor:
        return self.routers[0](self.left(x)) + self.right(x)


@model
class ShapeDependent(Model):
    """The path depends on a shape: right for the example's batch size, and in need of a guard for others."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.many = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.few(x) if x.shape[0] < 8 else self.many(x)


@model
class LoopOverBatch(Model):
    """A Python loop over the rows of the input: unrolled, it fits one batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[0])
        for row in x:
            state = torch.tanh(self.cell(row + state))
        return state


@model
class AuxiliaryHead(Model):
    """A second head for training alone: in eval mode no op uses it, and its keys must still be there."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.auxiliary = nn.Linear(6, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        h = self.trunk(x)
        return (self.head(h), self.auxiliary(h)) if self.training else self.head(h)


@model
class NeverCalled(Model):
    """A part that no forward calls: it trains to nothing and is in every checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def _double(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


@model
class Hooked(Model):
    """A forward hook on the root and one on a part, each changing the result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.layer.register_forward_hook(_double)
        self.register_forward_hook(_double)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@model
class TensorHook(Model):
    """A hook on a value inside the forward changes its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        if h.requires_grad:
            h.register_hook(lambda grad: grad * 3)
        return h.tanh()


@model
class ModeChangesInside(Model):
    """One part stays in eval mode whatever the root's mode is, as frozen batch norms do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.5)

    def train(self, mode: bool = True) -> ModeChangesInside:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x))
