"""Ops that hold a whole function: of one's own for autograd, conditional ones, loops, attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .program import Run, Steps, Two, program, rand, two


class Clipped(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < ctx.limit) * 3, None


@program(two(lambda self, x: Clipped.apply(self.left(x), 0.5) + Clipped.apply(self.right(x), 0.25)))
def autograd_function(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    yield run.learn(rand(5, 4))


class Writing(torch.autograd.Function):
    """Writes its input, gives two results of which one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        ctx.mark_dirty(x)
        order = x.argsort()
        ctx.mark_non_differentiable(order)
        return x, order

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        return grad * 2


@program(two(lambda self, x: (*Writing.apply(self.left(x) * 1), self.right(x))))
def autograd_function_that_writes(run: Run) -> Steps:
    yield run.learn(rand(grad=True))


class Twice(torch.autograd.Function):
    """In the newer style, with a context that is set up apart."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 5 * grad * ctx.saved_tensors[0]


@program(two(lambda self, x: Twice.apply(self.left(x)) + Twice.apply(self.right(x))))
def autograd_function_in_two_parts(run: Run) -> Steps:
    yield run.learn(rand(grad=True))


def _cond(self: nn.Module, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda y: self.left(y) * 2, lambda y: self.right(y).sin(), (x,))


@program(two(_cond))
def cond_with_closures(run: Run) -> Steps:
    for x in (rand().abs(), -rand().abs(), rand().abs()):
        yield run.learn(x)


def _while_loop(self: nn.Module, x: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    count, x = while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 1.5), (torch.tensor(0), x))
    return self.left(x) * count + self.right(x)


@program(two(_while_loop), bare=False)
def while_loop(run: Run) -> Steps:
    with torch.no_grad():
        yield run(rand())
        yield run(rand(seed=8))


def _flex(self: nn.Module, x: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    heads = [layer(x).detach().view(1, 1, -1, 4) for layer in (self.left, self.right)]
    return flex_attention(heads[0], heads[1], heads[1], score_mod=lambda score, b, h, q, k: score * 0.5 + (q - k))


@program(two(_flex), lambda: rand(16, 4))
def flex_attention(run: Run) -> Steps:
    yield run(rand(16, 4))
    yield run(rand(16, 4, seed=8))


def _attention(self: nn.Module, x: Tensor) -> Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key = self.left(x).view(1, 1, -1, 4), self.right(x).view(1, 1, -1, 4)
    with sdpa_kernel(SDPBackend.MATH):
        return nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True)


@program(two(_attention))
def attention_of_a_chosen_kernel(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(6, 4))


class HoldsOps(Two):
    """ATen's own ops, as a library keeps them that chooses its kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.op, self.packet, self.table = (
            torch.ops.aten._safe_softmax.default,
            torch.ops.aten.relu,
            {"a": torch.ops.aten.sin.default},
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.op(self.left(x), -1) + self.packet(self.right(x)) + self.table["a"](x)


@program(HoldsOps)
def ops_that_the_model_holds(run: Run) -> Steps:
    """What the dispatcher keeps on such an op counted for an attribute of the model's, and the model was refused."""
    yield run.learn(rand(grad=True))
    yield run(rand(5, 4))


def _diverges(self: nn.Module, x: Tensor) -> Tensor:
    left, right = (torch.distributions.StudentT(layer(x).exp(), validate_args=False) for layer in (self.left, self.right))
    try:
        return torch.distributions.kl_divergence(left, right)
    except NotImplementedError:
        return left.scale * self.left(x) + self.right(x)


@program(two(_diverges))
def divergence_that_nobody_has_written(run: Run) -> Steps:
    """Torch keeps `NotImplemented` in a table for it, and an item that is that was taken for an operator that says so."""
    yield run.learn(rand(grad=True))
    yield run(rand(5, 4))
