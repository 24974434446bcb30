"""What a class may define for itself: how it is called, trained, read, saved, listed."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, Two, program, raised, rand


class Dunders(Two):
    def __init__(self) -> None:
        super().__init__()
        self.items = [1, 2, 3]

    def __len__(self) -> int:
        return 0

    def __getitem__(self, index: int) -> nn.Module:
        return (self.left, self.right)[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self.left, self.right])

    def __contains__(self, item: object) -> bool:
        return item in self.items

    def __bool__(self) -> bool:
        return False

    def forward(self, x: Tensor) -> Tensor:
        return self[0](x) + sum(layer(x) for layer in self) + len(self)


@program(Dunders)
def dunder_methods(run: Run) -> Steps:
    yield run.learn(rand())
    yield raised(lambda: (len(run.module), bool(run.module), 2 in run.module, len(list(run.module))))
    yield raised(lambda: run.module[1](rand()))


class OwnCall(Two):
    def __call__(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return super().__call__(x * scale) + 1


@program(OwnCall)
def call_of_its_own(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(), scale=3.0)


class OwnTrain(Towers):
    def train(self, mode: bool = True) -> OwnTrain:
        super().train(mode)
        self.norm.eval()
        return self


@program(OwnTrain)
def train_of_its_own(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.train()
    yield run.learn(rand()), run.module.norm.training
    run.module.eval()
    yield run(rand())


class OwnGetattr(Two):
    def __getattr__(self, name: str) -> Any:
        if name == "doubled":
            return self.left.weight * 2
        if name.startswith("number_"):
            return float(name.removeprefix("number_"))
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.doubled + self.right(x) * self.number_3


@program(OwnGetattr)
def getattr_of_its_own(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.module.number_5, run.module.doubled
    yield raised(lambda: run.module.missing)


class OwnState(Two):
    def __init__(self) -> None:
        super().__init__()
        self.version = 3

    def get_extra_state(self) -> dict[str, int]:
        return {"version": self.version}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.version = state["version"] + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.version + self.right(x)


@program(OwnState, watch="version")
def extra_state(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.module.load_state_dict(run.module.state_dict())
    yield run.learn(rand())


class WithProperty(Two):
    @property
    def weight(self) -> Tensor:
        return self.left.weight * self._scale

    @functools.cached_property
    def table(self) -> Tensor:
        return torch.arange(4.0)

    _scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.right(x) + self.table


@program(WithProperty)
def properties(run: Run) -> Steps:
    yield run.learn(rand())
    run.module._scale = 3.0
    yield run.learn(rand())
    run.module.__dict__["table"] = torch.ones(4)
    yield run.learn(rand())


class Meta(abc.ABCMeta):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.scale = 3.0
        return made


class Slotted(Two, metaclass=Meta):
    __slots__ = ("factor",)

    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.factor + self.right(x) * self.scale


@program(Slotted)
def slots_and_a_metaclass(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.factor = 4.0
    yield run.learn(rand()), run.module.factor
