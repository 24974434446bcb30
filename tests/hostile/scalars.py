"""Python's numbers and texts as arguments and attributes: how they are promoted, rounded, kept apart and burned in."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .program import Run, Steps, program, raised, rand, two

MIXED = two(lambda self, x, scale: (self.left(x) * scale, x * scale, torch.arange(3) * scale, torch.tensor(scale)))


@program(MIXED, rand, lambda: 2)
def whole_broken_and_true(run: Run) -> Steps:
    for scale in (2, 2.0, True, 3, 0.5, False):
        yield run(rand(), scale)


@program(MIXED, rand, lambda: 2.0)
def many_numbers(run: Run) -> Steps:
    for step in range(12):
        yield run(rand(), 1.0 + step / 7)


@program(two(lambda self, x, n: (self.left(x) + n, n * 2, n // 2, torch.full((2,), n))), rand, lambda: 3)
def many_whole_numbers(run: Run) -> Steps:
    for n in (3, 4, 0, 1, -1, 2**40, 7):
        yield run(rand(), n)


@program(two(lambda self, x, n: self.left(x).repeat(n, 1)[: n + 2] + self.right(x).sum()), rand, lambda: 2)
def number_as_a_size(run: Run) -> Steps:
    for n in (2, 3, 1, 5):
        yield run.learn(rand(), n)
    yield raised(lambda: run(rand(), -1))
    yield raised(lambda: run(rand(), 1.5))


def _steps(self: nn.Module, x: Tensor, steps: int) -> Tensor:
    for step in range(steps):
        x = torch.tanh(self.left(x)) + self.right(x) * step
    return x


@program(two(_steps), rand, lambda: 2)
def number_of_steps(run: Run) -> Steps:
    for steps in (2, 3, 0, 1, 5):
        yield run.learn(rand(), steps)


@program(two(lambda self, x, scale: self.left(x) * scale + self.right(x)), rand, lambda: 1.0)
def extreme_numbers(run: Run) -> Steps:
    for scale in (1.0, 1e-45, 1e38, 1e300, float("inf"), float("nan"), -0.0, 10**20):
        yield raised(lambda scale=scale: run(rand(), scale))


@program(two(lambda self, x, scale: self.left(x) * scale + self.right(x)), rand, lambda: np.float32(2))
def numbers_of_numpy(run: Run) -> Steps:
    for scale in (np.float32(2), np.float64(3), np.int64(2), np.bool_(True), 2.0):
        yield run(rand(), scale)


def _jittered(self: nn.Module, x: Tensor) -> Tensor:
    """As vision models rescale coordinates: a number of numpy's where torch asks for a float."""
    most = np.log(getattr(self, "jitter", 2.0))
    return self.left(x) * torch.empty(1, 4).uniform_(-most, most).exp() + self.right(x)


@program(two(_jittered))
def number_that_numpy_made(run: Run) -> Steps:
    yield run(rand())
    run.module.jitter = 3.0
    yield run.learn(rand())


def _of_unusual(self: nn.Module, x: Tensor, value: Any) -> Tensor:
    return self.left(x) * float(value) + self.right(x)


@program(two(_of_unusual), rand, lambda: fractions.Fraction(1, 3))
def unusual_numbers(run: Run) -> Steps:
    for value in (
        fractions.Fraction(1, 3),
        decimal.Decimal("0.5"),
        "2.5",
        fractions.Fraction(2, 3),
        np.array(3.0),
        torch.tensor(4.0),
    ):
        yield run(rand(), value)


@program(two(lambda self, x, name: (self.left(x) * len(name), name.upper(), f"{name}!")), rand, lambda: "ab")
def texts(run: Run) -> Steps:
    for name in ("ab", "abc", "", "größe", "a'b\"c\n", "%s {0}"):
        yield run(rand(), name)


def _of_objects(self: nn.Module, x: Tensor, when: datetime.date, where: pathlib.PurePath) -> tuple[Tensor, Any]:
    return self.left(x) * when.day + self.right(x) * len(where.parts), when


@program(two(_of_objects), rand, lambda: datetime.date(2024, 1, 2), lambda: pathlib.PurePosixPath("a/b"))
def dates_and_paths(run: Run) -> Steps:
    yield run(rand(), datetime.date(2024, 1, 2), pathlib.PurePosixPath("a/b"))
    yield run(rand(), datetime.date(2024, 1, 3), pathlib.PurePosixPath("a/b/c"))


@program(
    two(lambda self, x, dtype, device: self.left(x).to(dtype).to(device)),
    rand,
    lambda: torch.float64,
    lambda: torch.device("cpu"),
)
def dtypes_and_devices(run: Run) -> Steps:
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        yield run(rand(), dtype, torch.device("cpu"))
    yield run(rand(), torch.float32, "cpu")


@program(two(lambda self, x, index: self.left(x)[index] + self.right(x)[..., :1].sum()), rand, lambda: 1)
def indices_of_all_kinds(run: Run) -> Steps:
    for index in (
        1,
        slice(0, 2),
        slice(None, None, 2),
        None,
        ...,
        (0, 1),
        [0, 2],
        torch.tensor([True, False, True]),
        -1,
        np.int64(2),
    ):
        yield run(rand(), index)


@program(two(lambda self, x: self.left(x) * self.scale + self.right(x), scale=1.0))
def number_in_an_attribute_that_moves(run: Run) -> Steps:
    """As a schedule does, step by step."""
    for step in range(12):
        run.module.scale = 1.0 + step / 7
        yield run.learn(rand())


@program(two(lambda self, x: self.left(x) * 10**self.power + self.right(x) / 3 - 2**-self.power, power=2))
def whole_number_in_an_attribute(run: Run) -> Steps:
    for power in (2, 3, 0, 2.0, True):
        run.module.power = power
        yield run(rand())


@program(two(lambda self, x: (self.left(x).half() + 1, x.bfloat16() * 1.0000001, x.long() / 2, x.long() + 0.5, x.int() // 2)))
def numbers_meet_dtypes(run: Run) -> Steps:
    yield run(rand())


@program(two(lambda self, x: round(0.1 + 0.2, 17) * self.left(x) + (0.1 + 0.2 - 0.3) * self.right(x) + 1e-9 / 3))
def numbers_that_are_not_round(run: Run) -> Steps:
    yield run.module.double() is not None, run(rand(dtype=torch.float64))


@program(two(lambda self, x, values: self.left(x) + sum(values) + torch.tensor(values).sum()), rand, lambda: [1.0, 2.0])
def lists_of_numbers(run: Run) -> Steps:
    for values in ([1.0, 2.0], [3.0], [1, 2, 3], [True, False]):
        yield run(rand(), values)
