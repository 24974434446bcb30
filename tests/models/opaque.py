"""Ops that a graph shows as one node: custom ops, higher-order ops, regions of another mode, autograd functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .base import Model, model, numbers


@torch.library.custom_op("partitioner_tests::scale", mutates_args=())
def scale(x: Tensor, factor: float) -> Tensor:
    """A pure op with a backward."""
    return x * factor


@scale.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def _keep_factor(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.factor = inputs[1]


scale.register_autograd(lambda ctx, grad: (grad * ctx.factor, None), setup_context=_keep_factor)


@torch.library.custom_op("partitioner_tests::accumulate", mutates_args={"total"})
def accumulate(total: Tensor, x: Tensor) -> None:
    """Declares that it writes `total`, and returns nothing: only the declaration orders it."""
    total.add_(x.sum())


LIBRARY = torch.library.Library("partitioner_tests", "FRAGMENT")
LIBRARY.define("peek(Tensor total, Tensor x) -> Tensor")


def _peek(total: Tensor, x: Tensor) -> Tensor:
    total.add_(1.0)  # the schema above says that it does not
    return x + total


LIBRARY.impl("peek", _peek, "CPU")
LIBRARY.impl("peek", lambda total, x: torch.empty_like(x), "Meta")


class Head(Model):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)


class Totals(Head):
    """A layer, and a buffer that custom ops write."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.Buffer(torch.zeros(1))


@model
class PureCustomOp(Head):
    """An op that the dispatcher knows only by its schema."""

    def forward(self, x: Tensor) -> Tensor:
        return scale(self.head(x), 2.0) + scale(x, 3.0)


@model
class DeclaredMutation(Totals):
    """An op with no output at all, ordered by the declaration that it writes a buffer."""

    def forward(self, x: Tensor) -> Tensor:
        before = x + self.total
        accumulate(self.total, x.detach())
        return self.head(before) + self.total


@model
class LyingSchema(Totals):
    """An op that writes what its schema says it reads. Nothing declares it: it must be found by looking, or feared."""

    def forward(self, x: Tensor) -> Tensor:
        first = torch.ops.partitioner_tests.peek(self.total, x.detach())
        second = torch.ops.partitioner_tests.peek(self.total, x.detach() * 2)
        return self.head(x) + first * second


@model
class Conditional(Head):
    """`torch.cond`: both branches are in the graph and one of them runs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda h: torch.sin(h), lambda h: torch.cos(h), (self.head(x),))


@model
class Loop(Model):
    """`while_loop`: a node that runs its body as often as the data says."""

    def forward(self, x: Tensor) -> Tensor:
        def small(value: Tensor) -> Tensor:
            return value.abs().sum() < 100.0

        def double(value: Tensor) -> tuple[Tensor]:
            return (value * 2,)

        return torch._higher_order_ops.while_loop(small, double, (x,))[0]


@model
class AutocastRegion(Head):
    """The matrix product inside the region runs in bfloat16, the one outside in float32."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = self.head(x)
        return low.float() + self.head(x)


@model
class NoGradRegion(Head):
    """A teacher under `no_grad` beside a student: without the region the teacher's weight gets a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.head(x)
        return (self.head(x * 2) - target) ** 2


@model
class InferenceRegion(Head):
    """As above with `inference_mode`, whose tensors autograd will never take."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            offset = x.mean(0) * 2
        return self.head(x) + offset


@model
class Checkpointed(Head):
    """Activations are thrown away and computed again in backward, dropout included."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class StraightThrough(torch.autograd.Function):
    """Rounds forward, and pretends in backward that it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


@model
class CustomFunction(Head):
    """An autograd function: whoever looks inside loses its backward."""

    def forward(self, x: Tensor) -> Tensor:
        return StraightThrough.apply(self.head(x)) + x

    def example_inputs(self) -> tuple[object, ...]:
        return (numbers(3, 6, gradient=True),)
