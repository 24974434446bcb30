"""Random numbers: torch's, Python's, numpy's, one's own generators; and where they are left."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn

from .program import Run, Steps, Towers, Two, program, raised, rand, two


@program(two(lambda self, x: self.left(x) * random.random() + self.right(x) * random.randint(1, 5)))
def numbers_of_python(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand())


@program(two(lambda self, x: self.left(x) * float(np.random.rand()) + self.right(x) * np.random.randint(1, 5)))
def numbers_of_numpy(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand())


class OwnRandom(Two):
    def __init__(self) -> None:
        super().__init__()
        self.random, self.numpy = random.Random(3), np.random.default_rng(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.random.random() + self.right(x) * float(self.numpy.random())


@program(OwnRandom, unchecked="a random.Random of the model's own is not guarded")
def generators_of_ones_own(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand())
    yield run.module.random.random()


class OwnTorch(Two):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + torch.rand(4, generator=self.generator) * self.right(x)


@program(OwnTorch)
def torch_generator_of_ones_own(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand())
    run.module.generator.manual_seed(9)
    yield run(rand()), torch.rand(1, generator=run.module.generator)


@program(two(lambda self, x: self.left(x) + torch.rand(4) + torch.randn_like(x) * self.right(x) + torch.randperm(4)))
def numbers_of_torch(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand())
    torch.manual_seed(77)
    yield run(rand())


@program(Towers)
def seeds_set_between_calls(run: Run) -> Steps:
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        yield run.learn(rand()), torch.rand(2)


def _seeds(self: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(4)
    return self.left(x) + torch.rand(4)


@program(two(_seeds))
def seed_set_in_forward(run: Run) -> Steps:
    yield run(rand())
    yield run(rand()), torch.rand(2)


def _forks(self: nn.Module, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        noise = torch.rand(4)
    return self.left(x) + noise + torch.rand(4) * self.right(x)


@program(two(_forks))
def generator_forked_in_forward(run: Run) -> Steps:
    yield run(rand())
    yield run(rand()), torch.rand(2)


def _restores(self: nn.Module, x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    first = torch.rand(4)
    torch.set_rng_state(state)
    return self.left(x) * first + self.right(x) * torch.rand(4)


@program(two(_restores))
def state_kept_and_put_back_in_forward(run: Run) -> Steps:
    yield run(rand())
    yield run(rand()), torch.rand(2)


def _layer_drop(self: nn.Module, x: Tensor) -> Tensor:
    """As in models whose training leaves out whole layers."""
    x = self.left(x)
    if not self.training or torch.rand([]) > 0.5:
        x = self.right(x) * 2
    return x


@program(two(_layer_drop))
def layers_left_out_by_chance(run: Run) -> Steps:
    for _ in range(6):
        yield run.learn(rand())


@program(two(lambda self, x: self.left(x) if random.random() < 0.5 else self.right(x)))
def branch_taken_by_chance(run: Run) -> Steps:
    for _ in range(8):
        yield run.learn(rand())


class Chosen(Two):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[random.randrange(2)](x) + random.choice([1, 2, 3])


@program(Chosen)
def choice_of_python(run: Run) -> Steps:
    for _ in range(4):
        yield run(rand())


def _shuffles(self: nn.Module, x: Tensor) -> Tensor:
    order = list(range(4))
    random.shuffle(order)
    return self.left(x)[:, order] + self.right(x) * random.gauss(0, 1) + random.uniform(1, 2)


@program(two(_shuffles))
def shuffled_lists(run: Run) -> Steps:
    for _ in range(3):
        yield run(rand())


@program(
    two(lambda self, x: nn.functional.dropout(self.left(x), 0.5) + nn.functional.dropout(self.right(x), 0.25, training=True))
)
def dropout_whatever_the_mode(run: Run) -> Steps:
    yield run.learn(rand())
    yield run.learn(rand(2, 4))


class ManyDropouts(nn.Module):
    """Branches that all draw: lanes must not change who draws which number."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([branch(x) for branch in self.branches])


@program(ManyDropouts)
def dropout_in_many_branches(run: Run) -> Steps:
    for _ in range(3):
        yield run.learn(rand(grad=True))


@program(two(lambda self, x: torch.empty(4).uniform_() + torch.empty(4).normal_(1, 2) + self.left(x).bernoulli(0.5).detach()))
def numbers_drawn_in_place(run: Run) -> Steps:
    yield run(rand())
    yield run(rand())


@program(two(lambda self, x: torch.distributions.Normal(self.left(x), 1.0).rsample() + torch.multinomial(x.abs(), 4)))
def distributions(run: Run) -> Steps:
    yield run(rand())
    yield run.learn(rand())


@program(two(lambda self, x: nn.init.xavier_uniform_(torch.empty(4, 4)) @ self.left(x).T), refused=False)
def weights_made_in_forward(run: Run) -> Steps:
    yield run(rand())
    yield run(rand())


@program(two(lambda self, x, generator=None: self.left(x) + torch.rand(4, generator=generator)), rand)
def generator_as_input(run: Run) -> Steps:
    yield run(rand())
    generator = torch.Generator().manual_seed(4)
    yield raised(lambda: run(rand(), generator))
    yield run(rand(), generator=torch.Generator().manual_seed(5)), torch.rand(1, generator=generator)


@program(two(lambda self, x: (self.left(x) + torch.rand(4), torch.initial_seed(), torch.default_generator.initial_seed())))
def seed_that_forward_reads(run: Run) -> Steps:
    yield run(rand())
    torch.manual_seed(99)
    yield run(rand())
