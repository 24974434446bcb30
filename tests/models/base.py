"""What every named model shares: example arguments, and what torch's own tracers make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

EXACT = "exact"  # the traced module cannot be told from eager
KEYS = "keys"  # it computes the same, and its state_dict or its buffers have other names
WRONG = "wrong"  # it computes something else, and nothing was said
REFUSED = "refused"  # the tracer, or the traced module when first run, raised an error


@dataclass(frozen=True)
class Outcome:
    """What plain `torch.fx.symbolic_trace` and `torch.export.export(strict=False)` make of a model, the worse of both modes."""

    fx: str
    export: str


class Model(nn.Module):
    """A small model with one hazard, told in its docstring."""

    def example_inputs(self) -> tuple[object, ...]:
        """Positional arguments, the same every time."""
        return (numbers(3, 6),)

    def example_kwargs(self) -> dict[str, object]:
        """Keyword arguments, the same every time."""
        return {}


MODELS: dict[str, type[Model]] = {}
OUTCOMES: dict[str, Outcome] = {}


def model(fx: str = EXACT, export: str = EXACT) -> Callable[[type[Model]], type[Model]]:
    """Registers a model under its class name, with what torch's tracers make of it."""

    def register(cls: type[Model]) -> type[Model]:
        MODELS[cls.__name__] = cls
        OUTCOMES[cls.__name__] = Outcome(fx, export)
        return cls

    return register


def make(name: str, seed: int = 0) -> Model:
    """A new instance with the same parameters for the same seed; torch's own generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name]()


def numbers(*shape: int, seed: int = 0, gradient: bool = False) -> torch.Tensor:
    """Normally distributed float32 numbers, the same every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(gradient)
