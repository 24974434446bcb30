"""The plain model beneath: whoever still holds it changes it, calls it and trains it, and the partitioned module follows."""

from __future__ import annotations

import copy

import torch
from lanes import OLD_TORCH
from torch import Tensor, nn

from .program import Run, Steps, Towers, Two, program, rand, two


@program(two(lambda self, x: self.left(x) * self.scale + self.right(x), scale=2.0))
def attribute_changed_beneath(run: Run) -> Steps:
    yield run(rand())
    run.model.scale = 3.0
    yield run(rand()), run.module.scale
    run.module.scale = 5.0
    yield run(rand()), run.model.scale
    run.model.new = torch.ones(2)
    yield run.module.new
    del run.model.new
    yield hasattr(run.module, "new"), hasattr(run.model, "new")


@program(Two)
def part_replaced_beneath(run: Run) -> Steps:
    yield run.learn(rand())
    run.model.left = nn.Identity()
    yield run.learn(rand()), type(run.module.left).__name__, list(run.module.state_dict())
    run.module.right = nn.Tanh()
    yield run.learn(rand()), type(run.model.right).__name__, list(run.model.state_dict())


@program(Towers)
def trained_beneath(run: Run) -> Steps:
    optimizer = torch.optim.Adam(run.model.parameters(), lr=0.1)
    for seed in range(3):
        optimizer.zero_grad()
        yield run.learn(rand(seed=seed))
        optimizer.step()
    yield run.model(rand())


@program(Towers)
def called_in_turn(run: Run) -> Steps:
    """Statistics and random numbers go on, whichever of the two is called."""
    for seed in range(4):
        yield (run if seed % 2 else run.model)(rand(seed=seed))
    yield run.model.norm.running_mean, run.module.norm.running_mean


@program(Towers)
def mode_flipped_beneath(run: Run) -> Steps:
    yield run(rand())
    run.model.train(not run.training)
    yield run(rand()), run.module.training
    run.module.train(run.training)
    yield run(rand()), run.model.training, run.model.drop.training


@program(Towers)
def state_loaded_beneath(run: Run) -> Steps:
    yield run(rand())
    run.model.load_state_dict({key: value.clone() * 2 for key, value in run.module.state_dict().items()})
    yield run.learn(rand())
    run.model.load_state_dict({key: value.clone() * 2 for key, value in run.module.state_dict().items()}, assign=True)
    yield run.learn(rand())


@program(Two)
def cast_beneath(run: Run) -> Steps:
    yield run.learn(rand())
    run.model.zero_grad()
    run.model.double()
    yield run.learn(rand(dtype=torch.float64))
    run.module.float()
    yield run.model(rand())


@program(Towers)
def frozen_beneath(run: Run) -> Steps:
    run.model.requires_grad_(False)
    yield run(rand())
    run.model.head.requires_grad_(True)
    yield run.learn(rand())


@program(Towers)
def hooks_beneath(run: Run) -> Steps:
    """A hook of the plain model's own is for those who call the plain model, a hook of a part for both."""
    yield run.learn(rand())
    handle = run.model.left.register_forward_hook(lambda module, args, result: result * 2)
    yield run.learn(rand()), run.model(rand())
    handle.remove()
    yield run.learn(rand())


@program(Towers)
def copied_beneath(run: Run) -> Steps:
    yield run(rand())
    twin = copy.deepcopy(run.model)
    with torch.no_grad():
        twin.left.weight.fill_(1)
    yield twin(rand()), run(rand()), type(twin).__name__


@program(lambda: nn.Sequential(Two(), nn.Linear(4, 4)))
def forward_of_a_class_replaced(run: Run) -> Steps:
    before = Two.forward
    try:
        yield run(rand())
        Two.forward = lambda self, x: self.left(x)
        yield run(rand())
    finally:
        Two.forward = before
    yield run(rand())


def _minus(self: nn.Module, x: Tensor) -> Tensor:
    return self.left(x) - self.right(x)


@program(
    two(lambda self, x: self.left(x) + self.right(x)),
    limit="a forward of its own that is taken away again is not noticed" if OLD_TORCH else "",
)
def own_forward_replaced(run: Run) -> Steps:
    yield run(rand())
    run.model.forward = _minus.__get__(run.model)
    yield run(rand())
    del run.model.forward
    yield run(rand())
    type(run.model).forward = _minus
    yield run(rand())


@program(Towers)
def parts_of_both_are_the_same(run: Run) -> Steps:
    yield [left is right for left, right in zip(run.module.parameters(), run.model.parameters(), strict=True)]
    yield run.module.left is run.model.left, run.module.norm.running_mean is run.model.norm.running_mean
    yield run.learn(rand())
    yield [left.grad is right.grad for left, right in zip(run.module.parameters(), run.model.parameters(), strict=True)]
