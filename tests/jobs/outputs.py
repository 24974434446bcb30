"""What inference puts together of microbatches, beside what the model returns of the whole batch: equal, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from partitioner.distributed import inference
from partitioner.errors import InputError

RESULTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "rows": lambda x, y, state, own: {"y": y, "k": 3},
    "rows in another dimension": lambda x, y, state, own: (y, state),
    "the input": lambda x, y, state, own: (x, y),
    "as many weights as rows": lambda x, y, state, own: (y, own * 2),
    "a mean over rows": lambda x, y, state, own: y.mean(0, keepdim=True),
    "a pair of rows": lambda x, y, state, own: y[:, 0] @ y[:, 0].T,
    "how many rows": lambda x, y, state, own: (y, len(x)),
    "a list of rows": lambda x, y, state, own: list(y),
    "steps in order of rows": lambda x, y, state, own: y.flatten(0, 1),
    "rows in order of steps": lambda x, y, state, own: y.transpose(0, 1).flatten(0, 1),
    "places in order of steps": lambda x, y, state, own: (y, y.argmax(-1).T.reshape(1, -1)),
    "steps backwards": lambda x, y, state, own: y.flatten(0, 1).flip(0),
    "nothing but zeros": lambda x, y, state, own: y.flatten(0, 1) * 0,
}
"""Made of the input, an output by rows, a state of as many tensors as a microbatch has rows, and as many weights."""

BATCHES = {"one by one": (1, 2), "in pairs": (2, 2), "all at once": (4, 1)}
"""Rows of a microbatch, and how many there are."""


class Net(nn.Module):
    """Two layers, and a state of ``rows`` tensors with a row for each of the input's, as recurrent layers have it.

    Args:
        rows: of a microbatch.
        make: what is returned.
    """

    def __init__(self, rows: int, make: Callable[[Tensor, Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.own = nn.Parameter(torch.randn(rows, 3))
        self.make = make

    def forward(self, x: Tensor) -> Any:
        y = self.second(self.first(x).relu())
        return self.make(x, y, torch.stack([y[:, 0]] * len(self.own)), self.own)


def answer() -> dict[str, dict[str, str]]:
    """Of each result and each batch: "equal", "different", or how it was refused; empty on a rank that gives nothing."""
    return {name: {batch: _said(make, *sizes) for batch, sizes in BATCHES.items()} for name, make in RESULTS.items()}


def _said(make: Callable[[Tensor, Tensor, Tensor, Tensor], Any], rows: int, count: int) -> str:
    torch.manual_seed(0)
    model, x = Net(rows, make).eval(), torch.randn(rows * count, 5, 8)
    with torch.no_grad():
        expected = model(x)
    try:
        found = inference(model, x, {"distributed": {"mesh": {"pipeline": 2}, "microbatches": count, "timeout": 60}})[1](x)
    except (InputError, SystemExit) as error:
        return str(error)
    if found is None:
        return ""
    try:
        torch.testing.assert_close(found, expected)
    except AssertionError:
        return "different"
    return "equal"
