"""Autograd functions of a user's own, where torch asks more of them than one backward.

Within transforms, in the backward of another, called by Python between graphs, and those that run a model again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function

from .program import OLDER, Run, Steps, program, raised, rand, two


def sine(scale: float) -> type[Function]:
    """A function whose backward is another one than its forward has."""

    class Sine(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * ctx.saved_tensors[0].cos() * scale

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return tangent * ctx.saved_tensors[0].cos() * scale

    return Sine


Sine = sine(3)


def called(transform: Callable[[Any, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return two(lambda self, x: transform(self, x) + self.right(x))


def learns(run: Run) -> Steps:
    """Calls, learns and, in training, asks for gradients of gradients."""
    yield run.learn(rand(grad=True)), run.learn(rand(5, 4))
    if run.training:
        x = rand(grad=True)
        (slope,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        yield raised(lambda: torch.autograd.grad(slope.pow(2).sum(), [x, run.module.left.weight], allow_unused=True))
    with torch.no_grad():
        yield run(rand(2, 4))


@program(called(lambda self, x: torch.func.vmap(lambda row: Sine.apply(self.left(row)))(x)))
def within_vmap(run: Run) -> Steps:
    """What comes in under vmap seems to want no gradient, and so the function had none."""
    yield from learns(run)


@program(called(lambda self, x: torch.func.grad(lambda row: Sine.apply(self.left(row)).sum())(x)))
def within_a_gradient(run: Run) -> Steps:
    """The gradient of the gradient was another one."""
    yield from learns(run)


@program(called(lambda self, x: torch.func.jvp(lambda y: Sine.apply(y), (x,), (self.left(x),))[1]))
def within_a_product(run: Run) -> Steps:
    yield from learns(run)


class Cube(Function):
    """With a backward that has one of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        slope: Tensor = CubeSlope.apply(*ctx.saved_tensors, grad)
        return slope


class CubeSlope(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(x, grad)
        return 3 * x**2 * grad

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, outer = ctx.saved_tensors
        return grad * 60 * x * outer, grad * 3 * x**2


@program(called(lambda self, x: Cube.apply(self.left(x))), limit=OLDER)
def backward_with_a_backward(run: Run) -> Steps:
    """The second function's backward was not called: what its forward computes was differentiated."""
    yield from learns(run)


class Marks(Function):
    """Gives what is not differentiable beside what is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = x.round()
        ctx.mark_non_differentiable(whole)
        return x * 2, whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor, unused: Tensor) -> Tensor:
        assert not unused.any()  # of which no graph can be made
        return grad * 2


class Doubles(Function):
    """Writes its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


def marked(self: Any, x: Tensor) -> tuple[Tensor, bool]:
    print(end="")
    y, whole = Marks.apply(self.left(x))
    return y + whole if not whole.requires_grad else y * 100, whole.requires_grad


@program(two(marked))
def marks_between_graphs(run: Run) -> Steps:
    """The frame of forward was traced on its own, and what it told its context was forgotten: all results had gradients."""
    yield run.learn(rand(grad=True)), run.learn(rand(5, 4))


def doubled(self: Any, x: Tensor) -> Tensor:
    y = self.left(x) * 1
    Doubles.apply(y[:, :2])
    return y


@program(called(doubled), limit=OLDER)
def a_view_is_written(run: Run) -> Steps:
    """Of a result that nobody takes Dynamo says that it is none, and Python calls the function: gradients were those of x."""
    yield from learns(run)


class Again(Function):
    """Recomputes in backward, as checkpoints of diffusion models do."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor, *weights: Tensor) -> Tensor:
        ctx.run, ctx.x, ctx.weights = run, x, weights
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x = ctx.x.detach().requires_grad_()
        with torch.enable_grad():
            result = ctx.run(x)
        return None, *torch.autograd.grad(result, (x, *ctx.weights), grad)


@program(called(lambda self, x: Again.apply(lambda y: torch.tanh(self.left(y)), x, *self.left.parameters())))
def runs_again_in_backward(run: Run) -> Steps:
    yield run.learn(rand(grad=True)), run.learn(rand(5, 4))


class Reversed(Function):
    """Adds up gradients of weights by a backward within its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Tensor:
        with torch.no_grad():
            result = x + layer(x)
        ctx.x, ctx.layer = x.detach(), layer
        return result.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x = ctx.x.requires_grad_()
        with torch.enable_grad():
            ctx.layer(x).backward(grad)
        return grad + x.grad, None


@program(called(lambda self, x: Reversed.apply(x, self.left)))
def reversible(run: Run) -> Steps:
    yield run.learn(rand(grad=True)), run.learn(rand(5, 4, grad=True))


class Counted(Function):
    calls: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Counted.calls.append(len(x))
        ctx.call = len(Counted.calls)
        return x * ctx.call

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        Counted.calls.append(-ctx.call)
        return grad * ctx.call


def counted() -> nn.Module:
    Counted.calls.clear()
    return called(lambda self, x: Counted.apply(self.left(x)))()


@program(counted)
def counts_its_calls(run: Run) -> Steps:
    for rows in (3, 1):
        yield run.learn(rand(rows, 4, grad=True)), list(Counted.calls)


class Spike(Function):
    """A step whose gradient is a smooth one's."""

    @staticmethod
    def forward(ctx: Any, potential: Tensor, threshold: float, slope: float) -> Tensor:
        ctx.save_for_backward(potential)
        ctx.threshold, ctx.slope = threshold, slope
        return (potential > threshold).to(potential.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (potential,) = ctx.saved_tensors
        return grad / (ctx.slope * (potential - ctx.threshold).abs() + 1) ** 2, None, None


def spikes(self: Any, steps: Tensor) -> Tensor:
    found = []
    for x in steps:
        current = self.left(x) + self.right(x)
        self.potential = current if self.potential is None else 0.9 * self.potential + current
        found.append(Spike.apply(self.potential, 0.5, 25.0))
        self.potential = self.potential - found[-1].detach() * 0.5
    self.potential = self.potential.detach()
    return torch.stack(found)


@program(two(spikes, potential=None), lambda: rand(3, 2, 4), watch="potential")
def spiking_neurons(run: Run) -> Steps:
    for steps in (3, 2):
        yield run.learn(rand(steps, 2, 4, grad=True)), run.module.potential
    run.module.potential = None
    yield run.learn(rand(2, 5, 4)), run.module.potential
