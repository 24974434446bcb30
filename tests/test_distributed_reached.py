"""Which results of a model the gradients of a parameter come from, held against autograd's own answer."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward
from torch.utils.checkpoint import checkpoint

from partitioner.distributed.loss.between import between
from partitioner.distributed.loss.called import refuse_no_loss
from partitioner.distributed.loss.loss import Loss
from partitioner.distributed.pipeline.reaching import reaching_all
from partitioner.distributed.run.reached import all_reached, results_of
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


def alike(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    """A weight that says of which dtype, device or shape something is to be."""
    return net.a(x).to(net.b.weight), net.c(x).type_as(net.b.bias).view_as(net.a.weight[:2]).reshape_as(net.a(x))


def in_pieces(net: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    one, two = net.a(x).chunk(2, 1)
    return torch.cat([net.b(x), one], 1), net.c(torch.cat([two, two], 1))


@pytest.mark.parametrize(
    "body", [apart, detached, without_gradients, written_in_part, written_behind_a_result, through_a_buffer, alike, in_pieces]
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


class Rounded(torch.autograd.Function):
    """A step whose slope is learnt with the input alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Tensor) -> Tensor:
        return torch.round(x * slope)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def sum_of_all(net: Net, x: Tensor) -> Tensor:
    return net.c(net.a(x) + net.b(x).relu())


def rounded(net: Net, x: Tensor) -> Tensor:
    result: Tensor = Rounded.apply(net.c(net.b(net.a(x))), net.a.bias)
    return result


def recomputed(net: Net, x: Tensor) -> Tensor:
    result: Tensor = checkpoint(net.c, net.b(net.a(x)), use_reentrant=False)
    return result


@pytest.mark.parametrize(("body", "sure"), [(sum_of_all, True), (apart, False), (rounded, False), (recomputed, False)])
def test_ddp_looks_for_parameters_without_a_gradient_where_there_may_be_some(body: Callable[..., Any], sure: bool) -> None:
    """It did so everywhere, with an exchange more in each step."""
    net = Net(body)
    assert all_reached(net, example_in(net, torch.randn(4, 4), None, 2)) is sure


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A job of this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("last", [True, False])
def test_a_parameter_that_is_frozen_for_a_while_keeps_its_gradient_and_nobody_waits(alone: None, last: bool) -> None:
    """DDP does not know of it, and would refuse the next forward: not all gradients had come."""
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4)
    plain, ddp = copy.deepcopy(net), nn.parallel.DistributedDataParallel(net)
    for frozen in (False, True, True, False):
        for each in (plain, net):
            each[0].weight.requires_grad_(not frozen)
        with ddp.no_sync():
            output = ddp(x)
        ddp.reducer.prepare_for_backward([output])
        given = (output.sum(), None) if last else ((output, x), (torch.ones_like(output), None))
        with reaching_all(ddp, {"stage_output": given[0], "output_grads": given[1]}) as asked:
            stage_backward(**asked, input_values=())
        plain(x).sum().backward()
        assert [each.requires_grad for each in net.parameters()] == [each.requires_grad for each in plain.parameters()]
        torch.testing.assert_close([each.grad for each in net.parameters()], [each.grad for each in plain.parameters()])
        ddp.reducer._rebuild_buckets()
