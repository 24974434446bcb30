"""Where the models of the other files in this folder are listed, and what each is called with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Make = Callable[[int, torch.Generator], Any]
"""Makes positional arguments (a tuple) or keyword arguments (a dict) for a batch size."""


@dataclass(frozen=True)
class UserModel:
    """One model: how to build it, and what to call it with."""

    name: str
    make: Callable[[], nn.Module]
    arguments: Make

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make().eval()

    def inputs(self, batch: int = 2, seed: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        made = self.arguments(batch, torch.Generator().manual_seed(seed))
        return ((), made) if isinstance(made, dict) else (made, {})


USER_MODELS: dict[str, UserModel] = {}


def model(arguments: Make, **options: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Put a class of modules into `USER_MODELS`, under its own name in snake case."""

    def register(made: type[nn.Module]) -> type[nn.Module]:
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in made.__name__).lstrip("_")
        USER_MODELS[name] = UserModel(name, functools.partial(made, **options), arguments)
        return made

    return register


def normal(*shape: int) -> Make:
    return lambda batch, generator: (torch.randn(batch, *shape, generator=generator),)


def tokens(length: int, vocabulary: int = 50) -> Make:
    return lambda batch, generator: (torch.randint(1, vocabulary, (batch, length), generator=generator),)
