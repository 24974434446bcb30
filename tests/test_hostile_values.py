"""Programs that were different from eager, or refused for no reason, because of a value that nobody had thought of."""

from __future__ import annotations

from enum import IntEnum

import pytest
import torch
from lanes import numbers
from torch import Tensor, nn

from partitioner import partition
from scatter import scatter

LANES = ["cpu:0", "cpu:1"]
X = numbers(3, 4)


class Pair(nn.Module):
    """Two layers that read the same."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> object:
        return self.left(x), self.right(x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("how", ["torchscript", "batched", "frozen"])
def test_an_argument_of_any_name(how: str) -> None:
    """A function of a task was given its arguments under their names, and had two of the name ``self``."""

    class Named(Pair):
        def forward(this, self: Tensor, torch: Tensor) -> Tensor:  # type: ignore[override]
            return this.left(self).relu() + this.right(torch).relu()

    model = Named()
    parallel = partition(model, ["cpu"], example_inputs=(X, X), compile_tasks=how, tune=False, copy=True)
    assert "compiled: 5 of 5 ops" in str(parallel)
    torch.testing.assert_close(parallel(X, -X), model(X, -X))


def test_a_view_that_autograd_does_not_speak_of() -> None:
    """To watch a call for ``backward="lanes"`` asked what history a view has that was made without one, and written."""

    class Nudged(Pair):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                self.right.weight[0].add_(0.5)
                self.right.bias.copy_(x[0])
            return self.left(x), self.right(x)

    model = Nudged()
    parallel = partition(model, LANES, example_inputs=X, policy=scatter, grain=1e-9, backward="lanes", copy=True)
    for _ in range(2):
        torch.testing.assert_close(parallel(X), model(X))


CALLS = 0


@pytest.mark.parametrize("example", [X, None], ids=["example", "bare"])
def test_what_a_closure_and_a_global_hold_is_put_back(example: Tensor | None) -> None:
    """A counter of a forward's closure had counted the calls of a trace, a comparison, and of every plan that was tried."""
    calls, seen, shapes = 0, {"calls": 0}, []

    class Counting(Pair):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal calls
            global CALLS
            CALLS += 1
            calls += 1
            seen["calls"] += 1
            shapes.append(x.shape)
            return self.left(x) + self.right(x)

    before = CALLS
    parallel = partition(Counting(), LANES, example_inputs=example, tune=None if example is None else True)
    assert (CALLS - before, calls, seen, shapes) == (0, 0, {"calls": 0}, [])
    parallel(X)
    assert (CALLS - before, calls, seen, shapes) == (1, 1, {"calls": 1}, [X.shape])


def test_a_backward_that_is_still_to_come() -> None:
    """Statistics had been put back, but said that they were written: a loss of before could not go back any more."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    loss = model(X).square().sum()
    partition(model, LANES, example_inputs=X)
    loss.backward()
    assert model[0].weight.grad is not None


def test_a_lazy_layer_that_comes_later_draws_its_weights() -> None:
    """Two layers that got their shapes in two calls were equal: the generator was put back after each."""
    model = Pair()
    parallel = partition(model, LANES, example_inputs=X)
    for name in ("left", "right"):
        setattr(model, name, nn.LazyLinear(4))
        parallel(X)
    assert not torch.equal(model.left.weight, model.right.weight)
    torch.testing.assert_close(parallel(X), model(X))


class Size(float):
    """A number that may say more."""

    said = 0


class Hue(IntEnum):
    RED = 1


def test_what_a_number_says_of_itself_is_put_back() -> None:
    """Numbers hold nothing, it was thought: what forward wrote to a member of an IntEnum stayed when examples were run."""

    class Counting(Pair):
        def __init__(self) -> None:
            super().__init__()
            self.size, self.hue = Size(2.0), Hue.RED

        def forward(self, x: Tensor) -> Tensor:
            self.size.said, self.hue.note = self.size.said + 1, getattr(self.hue, "note", 0) + 1  # type: ignore[attr-defined]
            return self.left(x) * self.size + self.hue.note  # type: ignore[attr-defined,no-any-return]

    model = Counting()
    parallel = partition(model, LANES, example_inputs=X)
    assert (vars(model.size), "note" in vars(Hue.RED)) == ({}, False)
    for count in (1, 2):
        torch.testing.assert_close(parallel(X), model.left(X) * 2 + count)
        assert (model.size.said, vars(Hue.RED)["note"]) == (count, count)
