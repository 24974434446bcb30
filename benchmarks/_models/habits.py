"""What users do in a forward that tracers find hard: counters, hooks, random choices, in-place editing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _models.registry import model, normal


@model(normal(8))
class Ensemble(nn.Module):
    """Members run under no_grad but for the last one, and their spread is a result."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in range(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            fixed = [member(x) for member in self.members[:-1]]
        outputs = torch.stack([*fixed, self.members[-1](x)])
        return {"mean": outputs.mean(0), "std": outputs.std(0)}


@model(normal(8))
class StepCounter(nn.Module):
    """Counts its calls in a buffer and warms up by it; keeps a running mean of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("running", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.running.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.fc(x - self.running) * (1 - 0.5 ** (self.steps + 1))


@model(normal(8))
class EmaTeacher(nn.Module):
    """A buffer that forward binds anew instead of writing it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.register_buffer("center", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if self.training:
            self.center = self.center * 0.9 + y.mean(0, keepdim=True).detach() * 0.1
        return (y - self.center).softmax(-1)


@model(normal(8))
class StochasticDepth(nn.Module):
    """Layers are dropped by Python's condition on a random tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training and torch.rand(1).item() < 0.5:
                continue
            x = x + torch.relu(layer(x))
        return x


@model(normal(8))
class EarlyExit(nn.Module):
    """Leaves at the first head that is sure: control flow on data."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = torch.relu(block(x))
            y = head(x)
            if not self.training and y.softmax(-1).max() > 0.9:
                break
        return y


@model(normal(3, 16, 16))
class WeightAndSpectralNorm(nn.Module):
    """Parametrised weights: spectral norm writes its vectors in training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3))
        self.fc = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.leaky_relu(self.conv(x), 0.2, inplace=True).mean((2, 3)))


@model(normal(8))
class HookedFeatures(nn.Module):
    """Collects activations by forward hooks, as feature extractors do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.features: list[Tensor] = []
        for layer in self.layers:
            layer.register_forward_hook(self.keep)

    def keep(self, _module: nn.Module, _args: Any, output: Tensor) -> None:
        self.features.append(output)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.features = []
        y = self.layers(x)
        return y, *self.features


@model(normal(3, 8, 8))
class MixedPrecisionBlock(nn.Module):
    """Autocast inside of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = F.relu(self.conv(x)).mean((2, 3))
        return self.fc(h.float())


@model(normal(3, 16, 16))
class Checkpointed(nn.Module):
    """Activation checkpointing in training."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        return x.mean((2, 3))


@model(normal(4, 8))
class InPlaceEditing(nn.Module):
    """Writes into slices, masks and views of what it computes, as preprocessing code does."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.left(x), self.right(x).clone()
        b[:, 0] = a[:, -1]
        b[b < 0] *= 0.1
        head, tail = b[:, :2], b[:, 2:]
        tail.add_(head.detach())
        flat = b.view(b.size(0), -1)
        flat[:, ::7].zero_()
        return b, torch.where(a > 0, a, flat.view_as(a))
