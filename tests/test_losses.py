"""A loss of sequences of which the data say how long they are: one graph, where torch has no fake for what its kernel keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lanes import numbers, programs
from pretend import MIXED, TWO, spread
from torch import Tensor, nn
from torch.nn import functional

from partitioner import partition

pytestmark = pytest.mark.usefixtures("scattering", "one_thread")


class Hears(nn.Module):
    """Tells what was said, and how far off it is."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.left, self.right, self.reduction = nn.Linear(4, 5), nn.Linear(4, 5), reduction
        self.loss = nn.CTCLoss(zero_infinity=True)

    def forward(self, x: Tensor, said: Tensor, heard: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        told = (self.left(x) * self.right(x)).log_softmax(-1).transpose(0, 1)
        one = functional.ctc_loss(told[:, 0], said[0, :1], heard[0], lengths[0].clamp(max=1))
        return (
            told,
            functional.ctc_loss(told, said, heard, lengths, reduction=self.reduction),
            self.loss(told, said, heard, lengths),
            one,
        )


def speech(steps: int, count: int) -> tuple[Tensor, ...]:
    said = torch.tensor([[1, 2], [3, 3], [4, 1]])[:count]
    return numbers(count, steps, 4), said, torch.arange(steps - count, steps) + 1, torch.tensor([2, 1, 2])[:count]


def assert_alike(model: nn.Module, parallel: Any, *also: tuple[int, int, bool]) -> None:
    """Losses and gradients of several calls are eager's."""
    for steps, count, casts in ((8, 2, False), (6, 2, False), (9, 3, False), *also):
        found = []
        for module in (model, parallel):
            module.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=casts):
                results = module(*speech(steps, count))
            sum(each.sum() for each in results).backward()
            found.append((*results, *(each.grad for each in module.parameters())))
        torch.testing.assert_close(found[1], found[0], check_device=False)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_one_graph_has_the_loss(reduction: str) -> None:
    """It was refused: the operator has no meta kernel that supports dynamic output shapes."""
    model, options = Hears(reduction), {"copy": True, "policy": "scatter", "grain": 0, "fullgraph": True}
    parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=speech(8, 2), **options)
    assert_alike(model, parallel, (8, 2, True))  # autocast keeps the loss in float32
    assert programs(parallel) <= 4


@pytest.mark.parametrize("lanes", [TWO, MIXED], ids=["two GPUs", "GPU and CPU"])
def test_several_devices_have_the_loss(lanes: dict[str, int], world: Any) -> None:
    model = Hears("sum")
    assert_alike(model, spread(model, speech(8, 2), lanes, copy=True, policy="scatter"))
