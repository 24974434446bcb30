"""Values outside of the model that forward reads: globals, closures, its class, the environment."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .program import Run, Steps, Two, program, rand, two

SCALE = 2.0


OPTIONS: dict[str, Any] = {"scale": 2.0, "weight": None}


def _reads_globals(self: nn.Module, x: Tensor) -> Tensor:
    weight = OPTIONS["weight"]
    return self.left(x) * SCALE + self.right(x) * OPTIONS["scale"] + (0 if weight is None else weight)


def _with_globals() -> nn.Module:
    global SCALE
    SCALE = 2.0
    OPTIONS.update(scale=2.0, weight=torch.ones(4, requires_grad=True))
    return two(_reads_globals)()


@program(_with_globals)
def globals_changed(run: Run) -> Steps:
    global SCALE
    yield run.learn(rand()), OPTIONS["weight"].grad
    SCALE = 3.0
    yield run.learn(rand())
    OPTIONS["scale"] = 5.0
    yield run.learn(rand())
    with torch.no_grad():
        OPTIONS["weight"].mul_(2)
    yield run.learn(rand()), OPTIONS["weight"].grad
    OPTIONS["weight"] = None
    yield run.learn(rand())


class Closed(Two):
    def __init__(self) -> None:
        super().__init__()
        scale, weight = 2.0, torch.ones(4)

        def change(value: float) -> None:
            nonlocal scale
            scale = value
            weight.fill_(value)

        self.change, self.apply_scale = change, lambda x: x * scale + weight

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_scale(self.left(x)) + self.right(x)


@program(Closed)
def closure_changed(run: Run) -> Steps:
    yield run.learn(rand())
    run.module.change(3.0)
    yield run.learn(rand())


class OfTheClass(Two):
    scale = 2.0
    weight = torch.ones(4)
    table: ClassVar[dict[str, float]] = {"scale": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.scale + self.right(x) * self.weight * type(self).table["scale"]


def _fresh_class() -> nn.Module:
    OfTheClass.scale, OfTheClass.table["scale"] = 2.0, 1.0
    OfTheClass.weight.fill_(1)
    return OfTheClass()


@program(_fresh_class)
def attributes_of_the_class(run: Run) -> Steps:
    yield run(rand())
    OfTheClass.scale = 3.0
    yield run(rand())
    OfTheClass.weight.fill_(4)
    yield run(rand())
    OfTheClass.table["scale"] = 6.0
    yield run(rand())
    run.module.scale = 8.0
    yield run(rand())


@program(two(lambda self, x: self.left(x) if os.environ.get("HOSTILE") else self.right(x)))
def environment(run: Run) -> Steps:
    try:
        yield run(rand())
        os.environ["HOSTILE"] = "1"
        yield run(rand())
    finally:
        os.environ.pop("HOSTILE", None)
    yield run(rand())
