"""Which results of a model the gradients of a parameter come from, held against autograd's own answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partitioner.distributed.loss.between import between
from partitioner.distributed.loss.called import refuse_no_loss
from partitioner.distributed.loss.loss import Loss
from partitioner.distributed.run.reached import results_of
from partitioner.distributed.traced.example import example_in


class Net(nn.Module):
    """Three layers, and what a test makes of them."""

    def __init__(self, body: Callable[..., tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.body = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), body
        self.register_buffer("kept", torch.zeros(2, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(self, x)


def apart(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    return net.a(x), net.b(net.c(x))


def detached(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    return net.a(x) * net.b(x).detach(), net.c(x) * (net.a(x) > 0)


def without_gradients(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        fixed = net.a(x).tanh()
    return net.b(fixed), net.c(x)


def written_in_part(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    """What is made without a gradient, a view of it, and a write between them."""
    space = torch.zeros_like(x)
    head = space[:1]
    space[:, 2:] = net.a(x)[:, 2:]
    return net.c(x), head * net.b(x)[:1]


def written_behind_a_result(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    first = net.a(x)
    first.add_(net.b(x))
    return first, net.c(x).relu_()


def through_a_buffer(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    net.kept.copy_(net.a(x).detach())
    return net.kept * net.b(x), net.c(x)


def in_pieces(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    one, two = net.a(x).chunk(2, 1)
    return torch.cat([net.b(x), one], 1), net.c(torch.cat([two, two], 1))


@pytest.mark.parametrize(
    "body", [apart, detached, without_gradients, written_in_part, written_behind_a_result, through_a_buffer, in_pieces]
)
def test_results_that_gradients_come_from_are_those_of_autograd(body: Callable[..., tuple[Tensor, Tensor]]) -> None:
    net, x = Net(body), torch.randn(4, 4)
    graph = example_in(net, x, None, 2).traced.graph
    found, wanted = results_of(graph, graph.outputs), dict.fromkeys(dict(net.named_parameters()), 0)
    for place, result in enumerate(net(x[:2])):
        given = torch.autograd.grad(result.sum(), list(net.parameters()), retain_graph=True, allow_unused=True)
        for key, gradient in zip(wanted, given, strict=True):
            wanted[key] |= (gradient is not None) << place
    assert {key: found.get(key, 0) for key in wanted} == wanted


def test_a_loss_is_made_of_some_results_where_one_op_gives_all_of_them() -> None:
    """So it is under DDP: all results then seemed to be the last one, and of a loss of the first no gradient was kept."""
    layer, own = nn.Linear(4, 4), nn.Parameter(torch.ones(2))
    first, second = layer(torch.randn(2, 4)).split(2, 1)
    one, other = between((first * own).sum(), [first, second]), between(second.sum(), [first, second, 3])
    assert (one.leaves, one.reached) == ([own], {0})
    assert (other.leaves, other.reached) == ([], {1})


def weighted(output: Tensor, target: Tensor, weight: float) -> Tensor:
    return ((output - target) * weight).square().mean()


@functools.wraps(weighted)
def halved(output: Tensor, target: Tensor) -> Tensor:
    return weighted(output, target, 0.5)


@functools.wraps(weighted)
def to_zero(output: Tensor) -> Tensor:
    return weighted(output, torch.zeros(()), 0.5)


@functools.wraps(to_zero)
def handed_on(*args: Any, **kwargs: Any) -> Tensor:
    return to_zero(*args, **kwargs)


@pytest.mark.parametrize("loss, target", [(halved, True), (to_zero, False), (handed_on, False)])
def test_a_decorated_loss_takes_what_its_decorator_names(loss: Callable[..., Tensor], target: bool) -> None:
    """It was refused: "loss_fn needs output, target, weight"."""
    refuse_no_loss(loss, None)
    assert Loss(loss, batches=None).takes_target == target  # type: ignore[arg-type]
