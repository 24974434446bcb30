"""Layers of torch that read values in Python, or keep what a graph gives: one graph, also when the call is looked at again."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune, weight_norm
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from partitioner.distributed.pipeline.cut import cut_into
from partitioner.distributed.state.held import Ranked
from partitioner.distributed.traced.example import example_in
from partitioner.errors import TraceError
from partitioner.frontend.check.interpret import interpret
from partitioner.ir.machine import Device


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
    assert example.is_current.func.__self__.last is graph, "guards held, and nothing was traced anew"
    torch.testing.assert_close(model.state_dict(), state, rtol=0.0, atol=0.0)
    for batch in (x, 2 * x):
        values = example.arguments([batch]) | {name: example.traced.state[key] for name, key in graph.states.items()}
        found = interpret(graph, [values[name] for name in graph.arguments])
        torch.testing.assert_close(example.output(found, {}), wanted(batch))
    torch.testing.assert_close(model.state_dict(), wanted.state_dict())


def pruned(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", 0.5)


HOOKS = {
    weight_norm: "parametrizations.weight_norm",
    old_spectral_norm: "parametrizations.spectral_norm",
    pruned: "prune.remove",
}


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_torch_that_replace_a_weight_are_refused_with_what_to_take(hook: Callable[[nn.Module], nn.Module]) -> None:
    """The advice was that of a count of the user's own: to write a buffer in place."""
    with pytest.raises(TraceError, match=rf"0\.weight another value.*{HOOKS[hook]}"):
        example_in(nn.Sequential(hook(nn.Linear(4, 4))), torch.ones(2, 4), None, 1)


def test_a_part_is_copied_for_an_average_of_weights() -> None:
    """The copy was to be one of the graph, too, whose values have no storage."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    cut = cut_into(example_in(model, torch.ones(2, 4), None, 1).traced, 2, Device("cpu", "cpu"))
    assert cut.graph.nodes, "looked up once, and then kept"
    part = Ranked(cut, (0,))
    part.layer = model[0]
    part.layer(torch.ones(2, 4)).sum().backward()
    average = AveragedModel(part, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    average.update_parameters(part)
    part.layer.weight.detach().add_(1.0)
    average.update_parameters(part)
    torch.testing.assert_close(average.module.layer.weight, part.layer.weight - 0.5)
