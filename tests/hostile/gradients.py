"""Gradients: taken inside of forward, taken twice, kept, cut, added up, wanted of some and not of others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, Two, program, rand, two


def _gradient_inside(self: nn.Module, x: Tensor) -> Tensor:
    """As models of energies do: forces are gradients."""
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        energy = self.left(place).tanh().sum()
        (force,) = torch.autograd.grad(energy, place, create_graph=self.training)
    return force * self.right(x)


@program(two(_gradient_inside))
def gradient_inside(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    with torch.no_grad():
        yield run(rand(2, 4))


def _backward_inside(self: nn.Module, x: Tensor) -> Tensor:
    place = x.detach().requires_grad_()
    self.left(place).square().sum().backward()
    return self.right(x) + place.grad


@program(two(_backward_inside))
def backward_inside(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(2, 4))


def _wants_gradients(self: nn.Module, x: Tensor) -> Tensor:
    x.requires_grad_()
    return self.left(x) * self.right(x)


@program(two(_wants_gradients))
def requires_grad_set_in_forward(run: Run) -> Steps:
    x = rand()
    yield run(x), x.requires_grad
    if run.training:
        run.module(x).sum().backward()
        yield x.grad


def _freezes(self: nn.Module, x: Tensor) -> Tensor:
    self.left.requires_grad_(x.shape[0] > 2)
    return self.left(x) * self.right(x)


@program(two(_freezes))
def layer_frozen_in_forward(run: Run) -> Steps:
    for rows in (3, 2, 4):
        yield run.learn(rand(rows, 4))


@program(two(lambda self, x: self.left(x).tanh() * self.right(x)))
def double_backward(run: Run) -> Steps:
    x = rand(grad=True)
    (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    yield first
    first.square().sum().backward()
    yield x.grad


@program(Two)
def penalty_on_gradients(run: Run) -> Steps:
    optimizer = torch.optim.SGD(run.module.parameters(), lr=0.1)
    for seed in range(2):
        x = rand(seed=seed, grad=True)
        result = run(x)
        (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        (result.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield run(rand())


@program(two(lambda self, x: self.left(x).detach() * self.right(x) + self.left(x.detach())))
def parts_detached(run: Run) -> Steps:
    yield run.learn(rand(grad=True))


@program(two(lambda self, x: (self.left(x), self.right(x).detach(), x * 2, torch.ones(2), (x > 0))))
def results_with_and_without_gradients(run: Run) -> Steps:
    for wanted in (True, False):
        result, _ = run.learn(rand(grad=wanted))
        yield result, [part.requires_grad for part in result], [part.is_leaf for part in result]


@program(Two)
def some_weights_unused(run: Run) -> Steps:
    run.module.unused = nn.Linear(4, 4, bias=False)
    run.module.unused.weight.data.fill_(1)
    yield run.learn(rand()), run.module.unused.weight.grad


@program(two(lambda self, x: self.left(x) if x.shape[0] > 2 else self.right(x)))
def weights_used_in_turn(run: Run) -> Steps:
    for rows in (3, 2):
        run.module.zero_grad()
        yield run.learn(rand(rows, 4)), run.module.left.weight.grad, run.module.right.weight.grad


@program(two(lambda self, x: {"a": self.left(x), "b": self.right(x)}))
def backward_through_one_result_only(run: Run) -> Steps:
    result = run(rand())
    if run.training:
        result["b"].sum().backward()
    yield run.module.left.weight.grad, run.module.right.weight.grad


@program(two(lambda self, x: (self.left(x), self.right(x))))
def results_sent_back_one_by_one(run: Run) -> Steps:
    left, right = run(rand())
    if run.training:
        right.sum().backward()
        yield run.module.right.weight.grad
        left.sum().backward()
    yield run.module.left.weight.grad


def _retains(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    middle = self.left(x)
    if middle.requires_grad:
        middle.retain_grad()
    return middle, self.right(middle)


@program(two(_retains))
def gradient_of_the_middle_kept(run: Run) -> Steps:
    middle, result = run(rand())
    if run.training:
        result.sum().backward()
        yield middle.grad
    yield middle


@program(Towers)
def calls_added_up_before_backward(run: Run) -> Steps:
    total = sum(run(rand(seed=seed)).square().mean() for seed in range(3))
    if run.training:
        total.backward()
    yield total


@program(Towers)
def backward_after_another_call(run: Run) -> Steps:
    first = run(rand())
    with torch.no_grad():
        yield run(rand(2, 4))
    second = run(rand(seed=8))
    if run.training:
        second.sum().backward()
        first.sum().backward()
    yield first, second


@program(Towers)
def weights_changed_before_backward(run: Run) -> Steps:
    """Autograd notices that what it saved was written."""
    x = rand(grad=True)
    result = run(x)
    with torch.no_grad():
        run.module.head.weight.add_(1)
    try:
        result.sum().backward()
        yield "no error"
    except RuntimeError as error:
        yield "modified by an inplace operation" in str(error)


@program(Two)
def gradients_by_name_of_inputs(run: Run) -> Steps:
    x = rand(grad=True)
    result = run(x)
    yield torch.autograd.grad(result, [x, run.module.left.weight], torch.ones_like(result), allow_unused=True)


@program(Two)
def input_that_is_a_result(run: Run) -> Steps:
    x = rand(grad=True)
    for _ in range(3):
        x = run(x).tanh()
    if run.training:
        x.sum().backward()
    yield x


@program(two(lambda self, x: self.left(x) + torch.zeros(4, requires_grad=True) * self.right(x)))
def leaf_made_in_forward(run: Run) -> Steps:
    yield run.learn(rand())


def _names_of_graph(result: Tensor) -> list[str]:
    found, queue = [], [result.grad_fn]
    while queue:
        node = queue.pop()
        if node is not None:
            found.append(type(node).__name__)
            queue += [inner for inner, _ in node.next_functions]
    return sorted(set(found))


@program(two(lambda self, x: torch.relu(self.left(x))))
def graph_of_autograd_can_be_walked(run: Run) -> Steps:
    yield "AccumulateGrad" in _names_of_graph(run(rand()))
    yield run(rand()).grad_fn is not None


@program(Two)
def gradient_dtype_and_layout(run: Run) -> Steps:
    run.module.left.weight.grad = torch.ones(4, 4).t()
    yield run.learn(rand())
    yield run.module.left.weight.grad.stride()
