"""The two halves of a stage's backward give what one backward gives, on graphs drawn at random.

Weights are read by several ops, there are outputs that no input leads to, inputs that need no gradient, and losses that reach
little: what torch's own halves get wrong. Two microbatches follow each other, for gradients add up.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from partitioner.distributed.pipeline import passing
from partitioner.distributed.pipeline.halves import of_inputs, of_parameters
from partitioner.distributed.pipeline.passing import deliver, fan, share, token

WIDTH = 4


class Drawn(nn.Module):
    """Ops drawn at random on earlier values; some outputs are of parameters alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(draw.randint(1, 4)))
        for weight in self.weights:
            weight.requires_grad_(draw.random() < 0.8)
        self.inputs = draw.randint(1, 3)
        self.needed = [draw.random() < 0.6 for _ in range(self.inputs)]
        self.steps = [
            (draw.choice(("product", "sum", "tanh", "weight", "both")), draw.random(), draw.random(), draw.random())
            for _ in range(draw.randint(3, 12))
        ]
        self.outputs = [draw.random() for _ in range(draw.randint(1, 3))]

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        values = list(inputs)
        for how, one, two, which in self.steps:
            a, b = values[int(one * len(values))], values[int(two * len(values))]
            weight = self.weights[int(which * len(self.weights))]
            made = {
                "product": lambda a=a, w=weight: a @ w,
                "sum": lambda a=a, b=b: a + b,
                "tanh": lambda a=a: torch.tanh(a),
                "weight": lambda w=weight: torch.sin(w),
                "both": lambda a=a, b=b, w=weight: torch.sigmoid(a @ w) * b + w,
            }[how]()
            values.append(made)
        chosen = [values[len(inputs) + int(each * len(self.steps))] for each in self.outputs]
        return [each.clone() for each in chosen]


@pytest.mark.parametrize("seed", range(100))
def test_two_halves_are_one_backward(seed: int) -> None:
    torch.manual_seed(seed)
    model = Drawn(seed)
    given = [[torch.randn(WIDTH, WIDTH) for _ in range(model.inputs)] for _ in range(2)]
    wanted = [_inputs(model, each) for each in given]
    arriving = [torch.randn(WIDTH, WIDTH) for _ in model.outputs]
    for inputs in wanted:
        kept = [(value, gradient) for value, gradient in zip(model(*inputs), arriving, strict=True) if value.requires_grad]
        if kept:
            torch.autograd.backward(*zip(*kept, strict=True))
    gradients = [each.grad for each in model.weights]
    model.zero_grad()

    found = [_inputs(model, each) for each in given]
    first = [of_inputs(model(*inputs), arriving, inputs, model.parameters()) for inputs in found]
    assert all(each.grad is None for each in model.weights)
    for _, rests in first:
        of_parameters(rests)

    for (mine, _), inputs in zip(first, wanted, strict=True):
        for one, other in zip(mine, inputs, strict=True):
            _assert_close(one, other.grad)
    for weight, gradient in zip(model.weights, gradients, strict=True):
        _assert_close(weight.grad, gradient)


def _inputs(model: Drawn, values: list[Tensor]) -> list[Tensor]:
    return [value.clone().requires_grad_(needed) for value, needed in zip(values, model.needed, strict=True)]


def _assert_close(one: Tensor | None, other: Tensor | None) -> None:
    assert (one is None) == (other is None)
    if one is not None:
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _of_a_rank(here: bool, x: Tensor, weight: Tensor) -> Tensor:
    """What a rank of a branch axis makes of a weight that the first alone has, uses twice, and hands to the others."""
    like, last = (tuple(x.shape), x.dtype, x.device, True), token()
    if x.requires_grad:
        x, last = fan(last, x, "fanned")
    shared, last = share(last, weight.sin() if here else None, like, 0, here, "weight")
    product, last = share(last, x @ weight if here else None, like, 0, here, "before")
    other, last = share(last, None if here else product @ shared, like, 1, not here, "between")
    return deliver(last, other @ weight if here else None, like, 0, here, "result")[0]


@pytest.mark.parametrize("frozen", [False, True])
def test_ranks_of_a_branch_axis_exchange_in_the_first_half_alone(monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    """Jobs hung: in its second half, the rank of a parameter came again by exchanges before it, and the others did not.

    So it was where a normalised weight passed, a layer was used before and behind another rank's, and behind frozen stages.
    """
    sums: list[str] = []
    monkeypatch.setattr(passing, "_sent", lambda x, owner, group: torch.ones_like(x))
    monkeypatch.setattr(passing, "total", lambda x, group: sums.append(group) or x * 2)
    met = []
    for here in (True, False):
        weight, x = nn.Parameter(torch.randn(4, 4)), torch.randn(4, 4).requires_grad_(not frozen)
        _of_a_rank(here, x, weight).sum().backward()
        expected, weight.grad = weight.grad, None
        sums.clear()
        _, rests = of_inputs([_of_a_rank(here, x, weight).sum()], None, [x], [weight])
        met.append(list(sums))
        of_parameters(rests)
        assert sums == met[-1], "exchanged in the second half"
        torch.testing.assert_close(weight.grad, expected)
    assert met[0] == met[1] == ["between", "before", "weight", *(["fanned"] * (not frozen))]
