"""Very deep, very wide, very many: modules that call themselves, hundreds of ops, dozens of modules of one class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .program import Run, Steps, Two, program, rand, two


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, depth: int = 3) -> Tensor:
        return self.right(x) if depth == 0 else torch.tanh(self.left(self(x, depth - 1)))


@program(Recursive)
def forward_that_calls_its_module(run: Run) -> Steps:
    for depth in (3, 0, 5):
        yield run.learn(rand(), depth)


class Parent(nn.Module):
    """A part that knows its parent, past the tree."""

    def __init__(self) -> None:
        super().__init__()
        self.child, self.scale = Two(), 2.0
        self.child.__dict__["parent"] = self
        self.child.forward = lambda x: self.child.left(x) * self.child.parent.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x) + self.child.right(x)


@program(Parent)
def part_that_knows_its_parent(run: Run) -> Steps:
    yield run(rand())
    run.module.scale = 3.0
    yield run(rand())


class Wide(nn.Module):
    def __init__(self, branches: int = 40) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(4, 4) for _ in range(branches))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.tanh(branch(x)) for branch in self.branches]).sum(0)


@program(Wide)
def forty_branches(run: Run) -> Steps:
    yield run.learn(rand(grad=True))


def _adds(self: nn.Module, x: Tensor) -> Tensor:
    parts = [self.left(x) * n for n in range(250)]
    return sum(parts)


@program(two(_adds), slow=True)
def hundreds_of_added_tensors(run: Run) -> Steps:
    yield run.learn(rand())


class Long(nn.Module):
    def __init__(self, layers: int = 150) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@program(Long, slow=True)
def hundreds_of_layers(run: Run) -> Steps:
    yield run.learn(rand())


class Nested(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(4, 4), Nested(depth - 1) if depth else nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.layer(x)) + x


@program(lambda: Nested(90), slow=True)
def ninety_levels(run: Run) -> Steps:
    yield run.learn(rand())


@program(lambda: nn.Sequential())
def no_parts_at_all(run: Run) -> Steps:
    x = rand()
    yield run(x) is x


@program(lambda: nn.Identity())
def nothing_to_do(run: Run) -> Steps:
    x = rand(grad=True)
    yield run(x) is x
