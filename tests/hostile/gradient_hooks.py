"""Hooks that run in backward: of modules, of weights, of tensors in the midst of forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, program, rand, two


@program(Towers)
def backward_hooks(run: Run) -> Steps:
    seen: list[Any] = []
    handles = [
        run.module.left.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go))),
        run.module.right.register_full_backward_hook(lambda m, gi, go: tuple(g if g is None else g * 2 for g in gi)),
        run.module.register_full_backward_pre_hook(lambda m, go: tuple(g * 3 for g in go)),
    ]
    yield run.learn(rand(grad=True)), seen
    for handle in handles:
        handle.remove()
    yield run.learn(rand(grad=True)), len(seen)


@program(Towers)
def tensor_hooks_on_weights(run: Run) -> Steps:
    seen: list[Tensor] = []
    handle = run.module.left.weight.register_hook(lambda grad: grad * 2)
    run.module.right.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.clone()))
    yield run.learn(rand()), seen
    handle.remove()
    yield run.learn(rand()), seen


def _hooks_inside(self: nn.Module, x: Tensor) -> Tensor:
    middle = self.left(x)
    if middle.requires_grad:
        middle.register_hook(lambda grad: grad * 3)
    return middle * self.right(x)


@program(two(_hooks_inside))
def tensor_hook_inside(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    with torch.no_grad():
        yield run(rand())


SCALES = [2.0]


def _by_attribute(self: Any, x: Tensor, said: dict[str, float]) -> Tensor:
    middle = self.left(x)
    if middle.requires_grad:
        middle.register_hook(lambda grad: grad * self.scale)
    return middle * self.right(x)


def _by_argument(self: Any, x: Tensor, said: dict[str, float]) -> Tensor:
    middle = self.left(x)
    if middle.requires_grad:
        middle.register_hook(lambda grad: grad * said["scale"])
    return middle * self.right(x)


def _by_global(self: Any, x: Tensor, said: dict[str, float]) -> Tensor:
    middle = self.left(x)
    if middle.requires_grad:
        middle.register_hook(lambda grad: grad * (SCALES[0] if not torch.is_grad_enabled() else 7.0))
    return middle * self.right(x)


def _changed_before_backward(run: Run) -> Steps:
    SCALES[0], said = 2.0, {"scale": 2.0}
    yield run.learn(rand(), said)
    result = run(rand(), said)
    run.module.scale = said["scale"] = SCALES[0] = 5.0
    if run.training:
        result.sum().backward()


@program(two(_by_attribute, scale=2.0), rand, dict)
def tensor_hook_reads_an_attribute(run: Run) -> Steps:
    yield from _changed_before_backward(run)


@program(two(_by_argument), rand, lambda: {"scale": 2.0})
def tensor_hook_reads_an_argument(run: Run) -> Steps:
    yield from _changed_before_backward(run)


@program(two(_by_global), rand, dict)
def tensor_hook_reads_a_global(run: Run) -> Steps:
    yield from _changed_before_backward(run)


def _by_loop(self: Any, x: Tensor) -> Tensor:
    middle = self.left(x)
    for number in range(1, 4):
        middle = middle * 2
        if middle.requires_grad:
            middle.register_hook(lambda grad: grad * number)  # noqa: B023 - the last one, in all of them
    return middle * self.right(x)


@program(two(_by_loop))
def tensor_hooks_read_the_variable_of_a_loop(run: Run) -> Steps:
    yield run.learn(rand())


@program(Towers)
def tensor_hooks_on_inputs_and_results(run: Run) -> Steps:
    x, seen = rand(grad=True), []
    x.register_hook(lambda grad: seen.append(grad) or grad * 2)
    result = run(x)
    if run.training:
        result.register_hook(lambda grad: grad * 3)
        result.retain_grad()
        result.sum().backward()
    yield x.grad, seen, result.grad
