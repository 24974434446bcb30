"""Layers of torch that read values in Python, or keep what a graph gives: one graph, also when the call is looked at again."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from partitioner.distributed.example import example_in
from partitioner.frontend.check.interpret import interpret


class Masked(nn.Module):
    """An encoder with a mask of its own, which torch compares with the causal one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), 1)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf")), 1)
        return self.encoder(x, mask=mask)


def normed() -> nn.Module:
    """Its buffers are results of the graph, and it puts them in their own places: once more, they were without storage."""
    return nn.Sequential(spectral_norm(nn.Linear(8, 8)), nn.Tanh())


def averaged() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(32, momentum=None))


@pytest.mark.parametrize("build", [Masked, normed, averaged])
def test_a_call_is_one_graph_and_leaves_the_model_as_it_was(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = build(), torch.randn(4, 4, 8)
    wanted, state = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    example = example_in(model, x, None, 1)
    graph = example.traced.graph
    assert example.is_current() and example.is_current()
    torch.testing.assert_close(model.state_dict(), state, rtol=0.0, atol=0.0)
    for batch in (x, 2 * x):
        values = example.arguments([batch]) | {name: example.traced.state[key] for name, key in graph.states.items()}
        found = interpret(graph, [values[name] for name in graph.arguments])
        torch.testing.assert_close(example.output(found, {}), wanted(batch))
    torch.testing.assert_close(model.state_dict(), wanted.state_dict())
