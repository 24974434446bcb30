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
