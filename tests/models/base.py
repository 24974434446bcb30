"""What every named model shares: its name, and example arguments."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """A small model with one hazard, told in its docstring."""

    def example_inputs(self) -> tuple[object, ...]:
        """Positional arguments, the same every time."""
        return (numbers(3, 6),)

    def example_kwargs(self) -> dict[str, object]:
        """Keyword arguments, the same every time."""
        return {}


MODELS: dict[str, type[Model]] = {}


def model(cls: type[Model]) -> type[Model]:
    """Registers a model under its class name."""
    MODELS[cls.__name__] = cls
    return cls


def make(name: str, seed: int = 0) -> Model:
    """A new instance with the same parameters for the same seed; torch's own generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name]()


def numbers(*shape: int, seed: int = 0, gradient: bool = False) -> torch.Tensor:
    """Normally distributed float32 numbers, the same every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(gradient)
