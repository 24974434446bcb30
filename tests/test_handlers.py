"""``except`` around ops, where Python has begun the call: of errors that ops raise, and of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lanes import spec
from torch import Tensor, nn

from partitioner import partition


class ShapeError(RuntimeError):
    """As libraries have one, which say with it what was wrong in their own words (einops)."""


def told_apart(x: Tensor, weight: Tensor) -> Tensor:
    """One kind of error that no op raises."""
    try:
        return x @ weight
    except ShapeError as error:
        raise ShapeError(f"in a pattern: {error}") from error


def told_apart_then_caught(x: Tensor, weight: Tensor) -> Tensor:
    """And one that ops do raise."""
    try:
        return x @ weight
    except ShapeError:
        return x
    except RuntimeError:
        return x + 100


class Layer(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.eye(4) * 2), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight).relu()


class Begun(nn.Module):
    """Python decides on a value, and so has begun the call before the layers run."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.left, self.right = Layer(function), Layer(function)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e6:
            x = x / 2
        return self.left(x) + self.right(-x)


class LooksBeyond(nn.Module):
    """Asks for a row that is not there, through a function that catches what that raises."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        y = self.layer(x)
        try:
            return y[x.shape[0]], ""
        except IndexError as error:
            return y, str(error)


def test_a_row_that_is_beyond_the_last_one() -> None:
    """At an open size nobody knew what such an op does, so the call was not made again, and its error reached the caller."""
    model = LooksBeyond()
    parallel = partition(model, ["cpu:0", "cpu:1"])
    for rows in (3, 4, 5):
        assert parallel(torch.ones(rows, 4))[1] == model(torch.ones(rows, 4))[1]


@pytest.mark.parametrize(("function", "runs"), [(told_apart, False), (told_apart_then_caught, True)])
def test_an_except_of_an_error_that_no_op_raises_keeps_nothing_from_lanes(
    function: Callable[[Tensor, Tensor], Tensor], runs: bool
) -> None:
    """All that called einops ran as it was, once anything had ended a graph before."""
    torch.manual_seed(0)
    model = Begun(function)
    parallel = partition(model, spec=spec(2), example_inputs=torch.ones(3, 4), check=False)
    for x in (torch.ones(3, 4), torch.randn(3, 4)):
        assert torch.equal(parallel(x), model(x))
    assert ("handles what ops raise when Python has begun the call" in str(parallel)) is runs, str(parallel)
    with torch.no_grad():
        model.left.weight.set_(torch.ones(5, 4))
    for module in (model, parallel):
        if runs:
            assert module(torch.ones(3, 4))[0, 0] == 101
        else:
            with pytest.raises(RuntimeError, match="cannot be multiplied"):
                module(torch.ones(3, 4))
