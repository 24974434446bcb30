"""Forwards in which Python decides on data, prints, or calls what no tracer follows."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .program import Run, Steps, Two, program, raised, rand, two


def _signs(*values: float) -> Iterator[Tensor]:
    return (rand(seed=number + 3).abs() * value for number, value in enumerate(values))


@program(two(lambda self, x: self.left(x) * 2 if x.sum() > 0 else self.right(x) - 1))
def branch_on_data(run: Run) -> Steps:
    for x in _signs(1, -1, 1, -1):
        yield run.learn(x)


def _branches_in_the_middle(self: nn.Module, x: Tensor) -> Tensor:
    middle = torch.relu(self.left(x))
    if middle.max().item() > 0.5:
        middle = middle / middle.max()
    elif bool(middle.any()):
        middle = middle + 1
    return middle * self.right(x) + self.left(middle)


@program(two(_branches_in_the_middle))
def branch_in_the_middle(run: Run) -> Steps:
    for x in _signs(1, 0.1, -1, 3):
        yield run.learn(x)


def _halves(self: nn.Module, x: Tensor) -> tuple[Tensor, int]:
    steps = 0
    while x.abs().sum() > 1 and steps < 20:
        x, steps = x / 2 + self.left(x) * 0.01, steps + 1
    return self.right(x), steps


@program(two(_halves))
def loop_until_data_is_small(run: Run) -> Steps:
    for x in _signs(1, 8, 0.01):
        yield run.learn(x)


def _prints(self: nn.Module, x: Tensor) -> Tensor:
    print("rows", x.shape[0])
    result = self.left(x)
    print("sum", round(float(result.sum()), 3))
    return result * self.right(x)


@program(two(_prints))
def printing(run: Run) -> Steps:
    for rows in (3, 2, 3):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            result = run.learn(rand(rows, 4))
        yield result, text.getvalue()


def _through_numpy(self: nn.Module, x: Tensor) -> Tensor:
    array = np.sort(self.left(x).detach().numpy(), axis=0)
    return self.right(x) + torch.from_numpy(array) * float(np.linalg.norm(array))


@program(two(_through_numpy))
def through_numpy(run: Run) -> Steps:
    for rows in (3, 2, 3):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: self.left(x) * x.sum().item() + self.right(x) * float(x[0, 0]) + int(x.abs().sum())))
def numbers_taken_out(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(seed=seed))


@program(two(lambda self, x: (self.left(x), x.tolist(), (x > 0).sum().item(), self.right(x).argmax().item())))
def numbers_given_back(run: Run) -> Steps:
    for seed in range(3):
        yield run.learn(rand(seed=seed))


def _calls_outside(self: nn.Module, x: Tensor) -> Tensor:
    start = time.perf_counter()
    config = json.loads('{"scale": 2}')
    width = int(re.match(r"(\d+)", "4 columns").group(1))
    assert time.perf_counter() >= start
    return self.left(x) * config["scale"] + self.right(x) * width


@program(two(_calls_outside))
def calls_of_the_standard_library(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(2, 4))


class Piecewise(Two):
    """State of all kinds is written on both sides of a break."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.count, self.drop, self.log = 0, nn.Dropout(0.5), []

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().sum(0)
        self.count += 1
        result = self.drop(self.left(x))
        self.log.append(float(result.sum()))
        self.seen *= 0.5
        if self.log[-1] > 0:
            result = result + self.seen
        self.count += 1
        return self.drop(self.right(result)) * self.count


@program(Piecewise, watch="count log")
def state_on_both_sides_of_a_break(run: Run) -> Steps:
    for seed in range(4):
        yield run.learn(rand(seed=seed, grad=True))


def _breaks_under_modes(self: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = self.left(x).abs().mean().item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = self.right(x)
        if result.sum() > 0:
            result = result * scale
    return result.float() + self.left(x)


@program(two(_breaks_under_modes))
def break_inside_of_a_mode(run: Run) -> Steps:
    for x in _signs(1, -1):
        yield run.learn(x)
    with torch.no_grad():
        yield run(rand())


def _aliases_over_a_break(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    result = self.left(x).clone()
    part = result[1:]
    if float(x.sum()) > 0:
        part.mul_(2)
    result.add_(1)
    return result, part


@program(two(_aliases_over_a_break))
def views_over_a_break(run: Run) -> Steps:
    for x in _signs(1, -1):
        result, part = run(x)
        yield result, part
        with torch.no_grad():
            result.fill_(3)
        yield part


class Breaking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Nested(nn.Module):
    """A part that breaks, many times, with layers between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), Breaking()) for _ in range(3))
        self.right = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        right = self.right(x)
        for layer in self.layers:
            x = layer(x)
        return x * right


@program(Nested)
def parts_that_break(run: Run) -> Steps:
    for x in _signs(1, -1, 2):
        yield run.learn(x)


@torch.compiler.disable
def _never_traced(x: Tensor, found: list[Any]) -> Tensor:
    found.append(x.shape[0])
    return x * 2


@program(two(lambda self, x: _never_traced(self.left(x), self.found) + self.right(x), found=[]), watch="found")
def function_that_asks_not_to_be_traced(run: Run) -> Steps:
    for rows in (3, 2):
        yield run.learn(rand(rows, 4))


def _told_apart(self: nn.Module, x: Tensor) -> Tensor:
    return self.left(x) * (2 if torch.compiler.is_compiling() else 3) + self.right(x) * (5 if torch.jit.is_tracing() else 7)


@program(two(_told_apart), unchecked="torch.compiler.is_compiling() is true while tracing")
def forward_that_asks_whether_it_is_traced(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(2, 4))


@program(two(lambda self, x: self.left(x) * 2 if torch.allclose(x, x.round()) else self.right(x)))
def comparison_of_tensors(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(torch.ones(3, 4))
    yield raised(lambda: run("text"))


def _data_in_a_message(self: nn.Module, x: Tensor) -> Tensor:
    if (x < -100).any():
        raise ValueError(f"too small: {x.min().item():.1f}")
    return self.left(x) + self.right(x)


@program(two(_data_in_a_message))
def error_that_depends_on_data(run: Run) -> Steps:
    yield run.learn(rand())
    yield raised(lambda: run(rand().fill_(-123)))
    yield run.learn(rand())


def _beam(self: nn.Module, x: Tensor) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for row in self.left(x):
        best = sorted(range(4), key=lambda column: -float(row[column]))
        found.append({"order": best, "score": row[best[0]]})
    return {"found": found, "right": self.right(x)}


@program(two(_beam))
def python_sorts_by_data(run: Run) -> Steps:
    for seed in range(2):
        yield run(rand(seed=seed))
