"""What a forward leaves in a buffer for the next call is warned of where it is made of rows, and not where it is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partitioner.distributed.loss.left import left_in, warn_of_left
from partitioner.distributed.traced.example import example_in

COLUMNS, ROWS = 6, 8
X = torch.randn(ROWS, COLUMNS)


class Keeps(nn.Module):
    """A layer, a norm, and something that is done to a buffer, a count or a slow copy of the layer's weight."""

    def __init__(self, keep: Callable[[Keeps, Tensor], None], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.norm, self.keep = nn.Linear(COLUMNS, COLUMNS), norm or nn.BatchNorm1d(COLUMNS), keep
        self.slow = nn.Linear(COLUMNS, COLUMNS).requires_grad_(False)
        self.register_buffer("kept", torch.randn(2 * ROWS, COLUMNS))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x))
        found = y @ self.kept.clone().T
        with torch.no_grad():
            self.keep(self, y)
        return found


def queue(model: Keeps, y: Tensor) -> None:
    model.kept.copy_(torch.cat([model.kept[len(y) :], y]))


def one_place(model: Keeps, y: Tensor) -> None:
    model.kept[: len(y)] = y


def running_mean(model: Keeps, y: Tensor) -> None:
    model.kept.mul_(0.9).add_(0.1 * y.mean(0))


def codebook(model: Keeps, y: Tensor) -> None:
    model.kept.index_add_(0, y.argmax(1), y)


@pytest.mark.parametrize("keep", [queue, one_place, running_mean, codebook])
def test_a_buffer_of_rows_is_warned_of(keep: Callable[[Keeps, Tensor], None]) -> None:
    """A queue of keys that passes from microbatch to microbatch is not the queue of the last batch, and nobody said so."""
    model = Keeps(keep)
    example = example_in(model, X, None, 2)
    with pytest.warns(
        UserWarning, match=r"Keeps leaves in kept what it computes of its rows \(.*test_distributed_left.*4 microb"
    ):
        warn_of_left(model, example, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_left(model, example, 1)


def nothing(model: Keeps, y: Tensor) -> None:
    """Leaves nothing."""


def count(model: Keeps, y: Tensor) -> None:
    model.seen.add_((y > 0).sum())


def slow_copy(model: Keeps, y: Tensor) -> None:
    model.slow.weight.lerp_(model.layer.weight, 0.01)


def decay(model: Keeps, y: Tensor) -> None:
    model.kept.mul_(0.99)


@pytest.mark.parametrize("keep", [nothing, count, slow_copy, decay])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(COLUMNS), nn.BatchNorm1d(COLUMNS, momentum=None), nn.LayerNorm(COLUMNS)])
def test_what_is_not_made_of_rows_or_documented_is_not(keep: Callable[[Keeps, Tensor], None], norm: nn.Module) -> None:
    model = Keeps(keep, norm)
    assert left_in(model, example_in(model, X, None, 2)) is None


class Checkpointed(nn.Module):
    """A layer with a batch norm that is run again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(COLUMNS, COLUMNS), nn.BatchNorm1d(COLUMNS))

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.block, x, use_reentrant=False)


def test_nor_is_a_norm_in_a_layer_that_is_run_again() -> None:
    """To the graph the layer is one op, which writes the running statistics."""
    model = Checkpointed()
    assert left_in(model, example_in(model, X, None, 2)) is None
