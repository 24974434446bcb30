"""Exceptions, asserts, warnings, logging and interruptions: of the model's own kind, and nothing half done after them."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, Two, program, raised, rand, two


class OwnError(Exception):
    """With arguments of its own, and a text made of them."""

    def __init__(self, code: int, rows: int) -> None:
        super().__init__(code, rows)
        self.code, self.rows = code, rows

    def __str__(self) -> str:
        return f"code {self.code} for {self.rows} rows"


def _raises(self: nn.Module, x: Tensor) -> Tensor:
    if x.shape[0] > 4:
        raise OwnError(7, x.shape[0])
    return self.left(x) + self.right(x)


@program(two(_raises))
def error_of_ones_own(run: Run) -> Steps:
    yield run(rand())
    error = raised(lambda: run(rand(5, 4)))
    yield error, error.code, error.rows, isinstance(error, OwnError), error.args
    yield run.learn(rand())


@program(two(_raises), lambda: rand(5, 4), refused=True)
def error_for_the_example(run: Run) -> Steps:
    yield raised(lambda: run(rand(5, 4)))
    yield run(rand())


BUILT_IN = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    NotImplementedError,
    AttributeError,
    StopIteration,
    OSError,
    RuntimeError,
)


def _raises_many(self: nn.Module, x: Tensor, number: int = -1) -> Tensor:
    if number >= 0:
        raise BUILT_IN[number](f"number {number}")
    return self.left(x) + self.right(x)


@program(two(_raises_many))
def errors_of_python(run: Run) -> Steps:
    yield run(rand())
    for number in range(len(BUILT_IN)):
        yield raised(lambda number=number: run(rand(), number))
    yield run.learn(rand())


def _chained(self: nn.Module, x: Tensor, fail: bool = False) -> Tensor:
    try:
        return self.left(x)[9] if fail else self.left(x) + self.right(x)
    except IndexError as error:
        raise OwnError(1, 2) from error


@program(two(_chained))
def error_with_a_cause(run: Run) -> Steps:
    yield run(rand())
    error = raised(lambda: run(rand(), True))
    yield error, error.__cause__
    yield run(rand(), fail=False)


def _caught(self: nn.Module, x: Tensor, key: str = "scale") -> Tensor:
    try:
        scale = {"scale": 2.0}[key]
    except KeyError:
        scale = 5.0
    else:
        scale += 1
    finally:
        x = x + 1
    with contextlib.suppress(ZeroDivisionError):
        scale = 1 / (scale - 3)
    return self.left(x) * scale + self.right(x)


@program(two(_caught))
def errors_caught_in_forward(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(), "other")


def _catches_torch(self: nn.Module, x: Tensor) -> Tensor:
    try:
        return self.left(x) @ self.right(x)
    except RuntimeError:
        return self.left(x) @ self.right(x).T


@program(two(_catches_torch))
def error_of_an_op_caught_in_forward(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(4, 4))
    yield run.learn(rand(2, 4))


def _catches_rows(self: nn.Module, x: Tensor, rows: Tensor, asked: str = "") -> Tensor:
    y = self.left(x)
    if asked == "before" and y.sum() > 1e9:
        y = y + 1
    try:
        z = self.right(x)[rows]
    except IndexError:
        z = self.right(x)[:1]
    if asked == "after" and y.sum() > 1e9:
        y = y + 1
    return y + z


@program(two(_catches_rows), rand, lambda: torch.tensor([0]))
def error_of_data_caught_between_graphs(run: Run) -> Steps:
    """A program knows nothing of ``except``: the call is made again, or the frame runs as it is, if Python began the call."""
    for asked in ("", "before", "after"):
        for row in (0, 7, 1, 8):
            yield run.learn(rand(), torch.tensor([row]), asked)


def _draws_in_python(self: nn.Module, x: Tensor, rows: Tensor) -> Tensor:
    number = random.random()
    return (self.left(x) + self.right(x)[rows]) * number


@program(two(_draws_in_python), rand, lambda: torch.tensor([0]))
def error_after_a_draw_of_pythons(run: Run) -> Steps:
    """The call that is made again draws the numbers that it had drawn."""
    for row in (9, 0, 9, 1):
        random.seed(row)
        yield raised(lambda row=row: run(rand(), torch.tensor([row]))), random.random()


def _asserts(self: nn.Module, x: Tensor) -> Tensor:
    assert x.shape[1] == 4, f"wrong width {x.shape[1]}"
    assert isinstance(x, Tensor)
    return self.left(x) + self.right(x)


@program(two(_asserts))
def asserts_about_sizes(run: Run) -> Steps:
    yield run(rand())
    yield raised(lambda: run(rand(3, 5)))
    yield run(rand())


def _asserts_values(self: nn.Module, x: Tensor) -> Tensor:
    assert bool((x >= 0).all()), "negative numbers"
    return self.left(x) + self.right(x)


@program(two(_asserts_values), lambda: rand().abs())
def asserts_about_values(run: Run) -> Steps:
    yield run(rand().abs())
    yield raised(lambda: run(-rand().abs()))
    yield run.learn(rand().abs())


class WritesThenFails(Two):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.calls += 1
        if x.shape[0] > 4:
            raise OwnError(1, x.shape[0])
        return self.left(x) * self.count + self.right(x)


@program(WritesThenFails, watch="calls")
def error_after_a_write(run: Run) -> Steps:
    """What was written before the error stays written, once."""
    yield run(rand())
    yield raised(lambda: run.module(rand(5, 4))), run.module.count, run.module.calls
    yield run(rand()), run.module.count, run.module.calls


@program(two(lambda self, x, index: self.left(x)[index] + self.right(x)[index]), rand, lambda: torch.tensor([0, 1]))
def index_out_of_range(run: Run) -> Steps:
    yield run(rand(), torch.tensor([0, 1]))
    yield raised(lambda: run(rand(), torch.tensor([0, 7])))
    yield run.learn(rand(), torch.tensor([2, 1]))


@program(lambda: nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4)), lambda: torch.tensor([0, 1]))
def token_out_of_range(run: Run) -> Steps:
    yield run(torch.tensor([0, 1]))
    yield raised(lambda: run(torch.tensor([0, 5])))
    yield raised(lambda: run(torch.tensor([0.5])))
    yield run.learn(torch.tensor([4]))


class Chain(nn.Module):
    """Fails in a lane, in the middle of others."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Linear(4 + (n == 2), 4)) for n in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return sum(branch(x) for branch in self.branches)


@program(Chain, refused=True)
def one_branch_that_cannot_work(run: Run) -> Steps:
    yield raised(lambda: run(rand()))
    run.module.branches[2][1] = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        run.module.branches[2][1].weight.fill_(0.5)
    yield run.learn(rand())


@program(Towers)
def wrong_arguments(run: Run) -> Steps:
    yield run(rand())
    for arguments in ((), (rand(), rand()), ("text",), (None,), ([rand()],), (rand().numpy(),), (3,)):
        yield raised(lambda arguments=arguments: run(*arguments))
    yield run.learn(rand())


@program(Towers)
def backward_that_fails(run: Run) -> Steps:
    def fail(grad: Tensor) -> Tensor:
        raise OwnError(2, 2)

    x = rand(grad=True)
    result = run(x)
    handle = run.module.left.weight.register_hook(fail)
    yield raised(lambda: result.sum().backward())
    handle.remove()
    run.module.zero_grad()
    yield run.learn(rand(grad=True))


@program(Towers)
def backward_twice(run: Run) -> Steps:
    x = rand(grad=True)
    result = run(x)
    result.sum().backward(retain_graph=True)
    result.sum().backward()
    yield x.grad
    yield raised(lambda: result.sum().backward())


class Group(nn.Module):
    def forward(self, x: Tensor, fail: Any = None) -> Tensor:
        if fail:
            raise ExceptionGroup("several", [ValueError("one"), OwnError(1, 1)])
        return x.sin() + x.cos()


@program(Group)
def group_of_errors(run: Run) -> Steps:
    yield run(rand())
    error = raised(lambda: run(rand(), True))
    yield error, error.exceptions
