"""What programs made at random have found: combinations that nobody would write down, with which we were silently wrong.

Each is judged as programs of `hostile` are: the module does what the plain one does.
"""

from __future__ import annotations

import bisect
import enum
from collections import namedtuple
from typing import Any

import pytest
import torch
from hostile.judge import Variant, assert_equal
from hostile.program import Program, Run, Steps, kept_in, raised, rand, two
from torch import Tensor

FUZZED: dict[str, Program] = {}

fuzzed = kept_in(FUZZED)

pytestmark = pytest.mark.usefixtures("scattering")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("example", [True, False], ids=["example", "bare"])
@pytest.mark.parametrize("name", FUZZED)
def test_equal(name: str, example: bool) -> None:
    assert_equal(FUZZED[name], Variant(True, example))


def _takes_rows(self: Any, x: Tensor, way: int = 0) -> Any:
    y = self.left(x)
    if way == 0:
        first, *others = y
        return first.grad_fn.name(), [row.grad_fn.name() for row in others], self.right(sum(row for row in y))
    if way == 1:
        for row in y:
            row.mul_(2)
    else:
        y, _, _ = y
        y += 1
    return self.right(y)


@fuzzed(two(_takes_rows))
def rows_of_a_tensor_that_wants_a_gradient(run: Run) -> Steps:
    """A row was ``y[0]``, to which one may write; those of ``for row in y`` are views of one op, which is an error."""
    for way in range(3):
        yield raised(lambda way=way: run.learn(rand(grad=True), way))  # type: ignore[misc]
    with torch.no_grad():
        yield run(rand(), 1), run(rand(), 2)


class Base:
    """What forward derives a class of."""


def _makes_classes(self: Any, x: Tensor) -> Any:
    made = type("Made", (Base,), {"value": 3})()
    pair = namedtuple("pair", "left right")(self.left(x), self.right(x))
    kinds = [type(made), type(pair), enum.Enum("Colour", "RED GREEN")]  # type: ignore[misc]
    return made, pair, [kind.__module__ for kind in kinds]


@fuzzed(two(_makes_classes))
def modules_of_classes_that_are_made_by_a_call(run: Run) -> Steps:
    """They were said to be of the tracer's own modules."""
    yield run(rand())


def _holds_a_mode(self: Any, x: Tensor, kind: Any = torch.no_grad) -> Any:
    context = kind()
    y = self.left(x)
    torch._dynamo.graph_break()
    z, enabled = self.left(y), torch.is_grad_enabled()
    with context:
        w = self.right(z)
        torch._dynamo.graph_break()
        w = self.right(w)
    with torch.enable_grad(), context:
        inside = torch.is_grad_enabled()
    return z, w, enabled, inside, torch.is_grad_enabled()


@fuzzed(two(_holds_a_mode), lambda: torch.no_grad)
def modes_that_are_entered_after_a_graph_has_ended(run: Run) -> Steps:
    """From the end of the graph on nothing had gradients, without a word: bare torch.compile does so, too."""
    for kind in (torch.no_grad, torch.enable_grad):
        yield run.learn(rand(grad=True), kind)
        with torch.no_grad():
            yield run(rand(), kind)


def _decorates(self: Any, x: Tensor, n: int = 2) -> Any:
    y = self.left(x)

    @torch.no_grad()
    def frozen(t: Tensor, times: int = bisect.bisect(range(n), 1)) -> Any:
        return self.right(t) * times

    return y, frozen(y), torch.is_grad_enabled()


@fuzzed(two(_decorates))
def decorators_before_defaults_that_end_a_graph(run: Run) -> Steps:
    """The decorator is there before the function that it is given."""
    for n in (2, 3, 4):
        yield run.learn(rand(grad=True), n)
