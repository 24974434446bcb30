"""Plain Python values that forward reads and the user changes: in attributes, configs, globals, closures, classes."""

from __future__ import annotations

import argparse
import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .program import Run, Steps, program, rand, two


def scaled(self: nn.Module, x: Tensor) -> Tensor:
    return self.left(x) * self.config.scale + self.right(x)


class Slots:
    __slots__ = ("hidden", "scale")

    def __init__(self, scale: float) -> None:
        self.scale = scale


class Property:
    def __init__(self, scale: float) -> None:
        self._parts = {"scale": [scale]}

    @property
    def scale(self) -> float:
        return self._parts["scale"][0]

    @scale.setter
    def scale(self, value: float) -> None:
        self._parts["scale"][0] = value


class Dynamic:
    def __init__(self, scale: float) -> None:
        self.__dict__["values"] = {"scale": scale}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["values"][name] = value


@dataclass
class Settings:
    scale: float = 2.0
    more: dict[str, Any] = field(default_factory=lambda: {"deep": [1, {"scale": 2.0}]})


def _changed(run: Run, values: tuple[Any, ...] = (3.0, 2.0, -1.5)) -> Steps:
    yield run.learn(rand())
    for value in values:
        run.module.config.scale = value
        yield run.learn(rand())


@program(two(scaled, config=Slots(2.0)))
def config_with_slots(run: Run) -> Steps:
    yield from _changed(run)


@program(two(scaled, config=Property(2.0)))
def config_with_properties(run: Run) -> Steps:
    yield from _changed(run)


@program(two(scaled, config=Dynamic(2.0)))
def config_with_getattr(run: Run) -> Steps:
    yield from _changed(run)


@program(two(scaled, config=Settings()))
def config_of_a_dataclass(run: Run) -> Steps:
    yield from _changed(run)
    run.module.config = dataclasses.replace(run.module.config, scale=7.0)
    yield run.learn(rand())


@program(two(scaled, config=argparse.Namespace(scale=2.0)))
def config_of_a_command_line(run: Run) -> Steps:
    yield from _changed(run)


@program(two(scaled, config=Settings()))
def config_with_a_tensor(run: Run) -> Steps:
    yield from _changed(run, (torch.tensor(3.0), torch.full((4,), 2.0), 2.0, torch.tensor(4.0, dtype=torch.float64)))


@program(two(scaled, config=Settings()))
def config_with_an_array(run: Run) -> Steps:
    yield from _changed(run, (np.float32(3.0), np.float64(2.0), np.int64(4), 2.0))


def _by_array(self: nn.Module, x: Tensor) -> Tensor:
    return self.left(x) * torch.as_tensor(self.array) + self.right(x) * float(self.array[0])


@program(two(_by_array, array=np.ones(4, np.float32)))
def array_written(run: Run) -> Steps:
    yield run(rand())
    run.module.array[:2] = 3
    yield run(rand())
    run.module.array = np.full(4, 5, np.float64)
    yield run(rand())


def _deep(self: nn.Module, x: Tensor) -> Tensor:
    return self.left(x) * self.config.more["deep"][1]["scale"] + self.right(x) * self.config.more["deep"][0]


@program(two(_deep, config=Settings()))
def change_deep_in_a_config(run: Run) -> Steps:
    yield run(rand())
    run.module.config.more["deep"][1]["scale"] = 5.0
    yield run(rand())
    run.module.config.more["deep"].insert(0, 4)
    run.module.config.more["deep"].pop(1)
    yield run(rand())


@program(two(lambda self, x: self.left(x) * self.table[1050] + self.right(x) * sum(self.table), table=[1.0] * 1100))
def list_of_many_numbers(run: Run) -> Steps:
    yield run(rand())
    run.module.table[1050] = 2.0
    yield run(rand())
    run.module.table[1099] = 7.0
    yield run(rand())


@program(two(lambda self, x: self.left(x) * self.table["k1050"] + len(self.table), table={f"k{n}": 1.0 for n in range(1100)}))
def dict_of_many_items(run: Run) -> Steps:
    yield run(rand())
    run.module.table["k1050"] = 2.0
    yield run(rand())
    run.module.table["new"] = 2.0
    yield run(rand())


@program(two(lambda self, x: self.left(x) * sum(self.table.values()), table={"a": 1.0, "b": 2.0}))
def dict_changed(run: Run) -> Steps:
    yield run(rand())
    run.module.table.update(b=3.0)
    yield run(rand())
    del run.module.table["a"]
    yield run(rand())
    run.module.table["c"] = 1.0
    yield run(rand())


@program(two(lambda self, x: self.left(x) if "left" in self.chosen else self.right(x), chosen={"left"}))
def set_changed(run: Run) -> Steps:
    yield run(rand())
    run.module.chosen.discard("left")
    yield run(rand())
    run.module.chosen.add("left")
    yield run(rand())


class Kind(enum.Enum):
    ADD = "add"
    SUBTRACT = "subtract"


class Bits(enum.IntFlag):
    LEFT = 1
    RIGHT = 2


def _by_kind(self: nn.Module, x: Tensor) -> Tensor:
    match self.kind:
        case Kind.ADD:
            return self.left(x) + self.right(x)
        case Kind.SUBTRACT:
            return self.left(x) - self.right(x)
        case flags if Bits.LEFT in flags:
            return self.left(x) * int(flags)
    return self.right(x)


@program(two(_by_kind, kind=Kind.ADD))
def enumerations(run: Run) -> Steps:
    for kind in (Kind.ADD, Kind.SUBTRACT, Bits.LEFT | Bits.RIGHT, Bits.RIGHT, Bits.LEFT):
        run.module.kind = kind
        yield run(rand())


@program(
    two(lambda self, x: self.activation(self.left(x)) + self.right(x), activation=torch.relu),
    limit="a method of torch.Tensor in an attribute is not guarded",
)
def function_replaced(run: Run) -> Steps:
    yield run(rand())
    for function in (torch.tanh, nn.functional.gelu, lambda x: x * 3, torch.Tensor.sin, nn.Sigmoid()):
        run.module.activation = function
        yield run(rand())


@program(two(lambda self, x: self.left(x) * (self.new if hasattr(self, "new") else 1) + getattr(self, "other", 0)))
def attributes_that_come_and_go(run: Run) -> Steps:
    yield run(rand())
    run.module.new = 3.0
    yield run(rand())
    run.module.other = rand(4)
    yield run(rand())
    del run.module.new
    yield run(rand())
