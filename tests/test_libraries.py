"""What libraries that are installed do with models, each found with one of theirs and told here in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from partitioner import partition
from partitioner.errors import DifferenceError

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Doubler:
    """Notes what it was given last, but not for a tracer: tensordict does so with its parameters, their caches and locks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            setattr(self, self.name, x.shape)
        return x * 2


class Skipping:
    """Reads a mode before each call, and puts it back: tensordict decorates the forward of its modules with such objects."""

    __module__ = "pytest"

    def __call__(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return x * 2
        self.prev = torch.is_grad_enabled()
        return x * 2


class Doubling(nn.Module):
    def __init__(self, double: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.double = nn.Linear(4, 4), double

    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = self.double(self.layer(x))
        return doubled


@pytest.mark.parametrize("double", [Doubler("_last"), Skipping()])
def test_what_a_library_keeps_for_itself_and_not_while_it_is_traced_is_not_compared(double: Callable[[Tensor], Tensor]) -> None:
    """Losses and actors of torchrl were refused, for what tensordict notes of caches, locks and modes."""
    model = Doubling(double)
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, tune=False)
    assert torch.equal(parallel(X), model(X)) and parallel.graph.ops


def test_what_users_may_read_is_compared_although_it_is_not_for_tracers() -> None:
    with pytest.raises(DifferenceError, match=r"not both change double\.last"):
        partition(Doubling(Doubler("last")), ["cpu:0", "cpu:1"], example_inputs=X)


class Tried(nn.Module):
    """Python decides inside of a block in which Dynamo cannot go on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        y = y.relu()
        try:
            if y.sum() > 0:
                y = y * 2
        finally:
            y = y + 1
        return y


def test_a_forward_that_goes_on_without_a_graph_says_so() -> None:
    """Of normflows and gpytorch only the first lines were a graph, of which the summary did not say that it is not all."""
    model = Tried()
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=X, tune=False)
    assert torch.equal(parallel(X), model(X))
    assert "Python goes on after this graph, as it is:\n    what follows cannot be traced, nor gone on with" in str(parallel)
