"""A write to one tensor changes what others are: its base, other views of it, other names of it. Forward is told so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lanes import assert_same, numbers
from torch import Tensor, nn

from partitioner import partition

X, LANES = numbers(3, 4), ["cpu:0", "cpu:1"]

Body = Callable[[Tensor, Tensor], Any]
"""What a forward gives for an input and a weight."""


class Model(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.weight, self.body = nn.Parameter(numbers(3, 4)), body

    def forward(self, x: Tensor) -> Any:
        return self.body(x, self.weight)


def base_of_a_view(x: Tensor, weight: Tensor) -> Any:
    v = torch.zeros_like(x)
    v[:, 1:].add_(weight[:, 1:])
    return v * 2 if v.requires_grad else v * 3


def another_view(x: Tensor, weight: Tensor) -> Any:
    v = torch.zeros_like(x)
    flat, row = v.view(-1), v[1]
    flat[2:5].copy_(weight.view(-1)[:3])
    return [each * 2 if each.requires_grad else each * 3 for each in (v, flat, row)], v.grad_fn is None, row.is_leaf


def an_input(x: Tensor, weight: Tensor) -> Any:
    x[0].add_(weight[0])
    return x * 2 if x.requires_grad else x * 3


def several_at_once(x: Tensor, weight: Tensor) -> Any:
    v = torch.zeros_like(x)
    torch._foreach_add_([v], [weight])
    return v * 2 if v.requires_grad else v * 3


def asked_before(x: Tensor, weight: Tensor) -> Any:
    version, data, turned, given = x._version, x.data, x.T, weight.data
    x.add_(1)
    between = x._version
    x.data, weight.data = x.data * 2, weight.data * 3
    return x * weight, version, between, data, turned, given


def by_and_by(x: Tensor, weight: Tensor) -> Any:
    v, seen = torch.zeros(2, 4), []
    for row, written in enumerate((x, weight)):
        v[row].copy_(written[row])
        seen.append(v.requires_grad)
    return v * 1, seen


def without_recording(x: Tensor, weight: Tensor) -> Any:
    v = torch.zeros_like(x)
    with torch.no_grad():
        v[0].add_(weight[0])
    return v * 2 if v.requires_grad else v * 3


def one_more_dimension(x: Tensor, weight: Tensor) -> Any:
    z = x.clone()
    w = z.unsqueeze_(0)
    (row,) = z
    return row * weight, z.dim(), len(z), list(z.shape), z.numel(), w.dim()


def turned_under_another_name(x: Tensor, weight: Tensor) -> Any:
    z = x.clone()
    w = z.unsqueeze_(0)
    w.transpose_(1, 2)
    return z * z.shape[1] + z.stride(1), z.size(1), tuple(z.shape), z.is_contiguous(), torch.zeros(z.shape), f"{z.shape}"


BODIES = [
    base_of_a_view,
    another_view,
    an_input,
    several_at_once,
    asked_before,
    by_and_by,
    without_recording,
    one_more_dimension,
    turned_under_another_name,
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_what_a_tensor_is_after_a_write_to_another(body: Body, train: bool) -> None:
    """It was asked what it had been before, or at the end what it had been: no history, another shape, another version.

    Without examples nothing else noticed it.
    """
    model = Model(body).train(train)
    parallel = partition(Model(body).train(train), LANES)
    parallel.load_state_dict(model.state_dict())
    for _ in range(2):
        assert_same(parallel(X.clone()), model(X.clone()))


def test_it_is_so_for_the_comparison_as_well() -> None:
    """Such a model was refused, for it did not compute what eager computes."""
    for body in BODIES:
        partition(Model(body), LANES, example_inputs=X.clone())


class Decays(nn.Module):
    """Gives a weight other data between its uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer(x)
        self.layer.bias.data = self.layer.bias.data * 0.5
        return self.layer(first)


@pytest.mark.parametrize("example", [X, None])
def test_a_gradient_reaches_all_uses_of_a_weight_that_was_given_other_data(example: Tensor | None) -> None:
    """Asked for by `torch.autograd.grad`, that of the uses before it was lost; such a model was refused with an example."""
    model = Decays()
    parallel = partition(model, LANES, example_inputs=example, copy=True)
    found = [torch.autograd.grad(each(X).sum(), list(each.parameters())) for each in (model, parallel)]
    assert_same(*found)
    assert_same(list(model.parameters()), list(parallel.parameters()))
