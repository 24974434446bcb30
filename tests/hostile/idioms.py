"""What libraries and papers do in forward: factories of dictionaries, queues, codes, inner loops, steps that data decides."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .program import Run, Steps, Two, program, rand, two


class Numbers:
    """Gives one number after the other."""

    last = 0

    def __call__(self) -> float:
        self.last += 1
        return float(self.last)


def tabled(make: Callable[[], Any]) -> Callable[[], nn.Module]:
    """A model whose factors are those of a table, which makes what it has not."""

    def build() -> nn.Module:
        model = two(lambda self, x: self.left(x) * self.table[x.shape[0]] + self.right(x) * self.table["k"])()
        model.table = defaultdict(make())
        return model

    return build


def tables(run: Run) -> Steps:
    for rows in (3, 1, 3, 2):
        yield run.learn(rand(rows, 4, grad=True)), dict(run.module.table)


@program(tabled(Numbers), watch="table.default_factory.last")
def factory_that_counts(run: Run) -> Steps:
    """What lies behind a table's factory was not put back after the runs of `partition`."""
    yield from tables(run)


@program(tabled(lambda: (lambda numbers: lambda: next(numbers))(itertools.count(1))))
def factory_that_takes_numbers(run: Run) -> Steps:
    """The tracer made the item, of a copy of the table, once and for all: the table stayed empty."""
    yield from tables(run)


@program(tabled(lambda: lambda: float(len(re.sub(r"\D", "", "a1b2")))))
def factory_of_the_library(run: Run) -> Steps:
    yield from tables(run)


def histories(self: Any, x: Tensor) -> tuple[Any, ...]:
    self.sizes.append(x.shape[0])
    self.seen[x.shape[0]] += 1
    self.seen.update("ab")
    return self.left(x) * sum(self.sizes) + self.right(x) * self.seen.total(), self.seen.most_common(2)


@program(two(histories, sizes=deque(maxlen=3), seen=Counter()), watch="sizes seen")
def histories_of_sizes(run: Run) -> Steps:
    for rows in (3, 1, 2, 5):
        yield run.learn(rand(rows, 4)), list(run.module.sizes), dict(run.module.seen)


def rearranged(x: Tensor, pattern: str, **sizes: int) -> Tensor:
    """What a text says: ``b (h d) -> (b h) d``."""
    left, right = pattern.split("->")
    names: list[str] = []
    for size, (group, one) in zip(x.shape, re.findall(r"\(([^)]*)\)|(\w+)", left), strict=True):
        parts = group.split() or [one]
        known = prod(sizes[part] for part in parts if part in sizes)
        names += parts
        for part in parts:
            sizes.setdefault(part, size // known)
    groups = [group.split() or [one] for group, one in re.findall(r"\(([^)]*)\)|(\w+)", right)]
    order = [names.index(part) for group in groups for part in group]
    return x.reshape([sizes[name] for name in names]).permute(order).reshape([prod(map(sizes.get, group)) for group in groups])


@program(two(lambda self, x: self.left(rearranged(x, "b (h d) -> (b h) d", h=2).repeat(1, 2)) + self.right(x).sum()))
def rearranged_by_a_text(run: Run) -> Steps:
    for rows in (3, 1, 5):
        yield run.learn(rand(rows, 4, grad=True))


def inner_loop(self: Any, x: Tensor) -> Tensor:
    weights = dict(self.left.named_parameters())
    for _ in range(2):
        loss = torch.func.functional_call(self.left, weights, x).pow(2).mean()
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=self.training)
        weights = {name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
    return torch.func.functional_call(self.left, weights, x) + self.right(x)


@program(two(inner_loop))
def steps_of_learning_inside(run: Run) -> Steps:
    yield run.learn(rand(grad=True))
    yield run.learn(rand(5, 4))


def forces(self: Any, x: Tensor) -> dict[str, Tensor]:
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        energy = self.left(place).pow(2).sum(1)
        (slope,) = torch.autograd.grad(energy.sum(), place, create_graph=self.training, retain_graph=True)
    return {"energy": energy, "forces": -slope, "other": self.right(x)}


@program(two(forces))
def forces_of_an_energy(run: Run) -> Steps:
    yield run.learn(rand()), run.learn(rand(5, 4))
    with torch.no_grad():
        yield run(rand())


class Codes(nn.Module):
    """Quantizes to the nearest code, and keeps averages of how often each is used."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave, self.codes = nn.Linear(4, 4), nn.Linear(4, 4), nn.Embedding(5, 4)
        self.register_buffer("usage", torch.zeros(5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.enter(x)
        nearest = torch.cdist(z, self.codes.weight).argmin(1)
        code = self.codes(nearest)
        if self.training:
            with torch.no_grad():
                self.usage.mul_(0.9).add_(F.one_hot(nearest, 5).float().sum(0), alpha=0.1)
        loss = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(code.detach(), z)
        return self.leave(z + (code - z).detach()), loss, nearest


@program(Codes)
def nearest_codes(run: Run) -> Steps:
    for rows in (3, 5):
        yield run.learn(rand(rows, 4, grad=True)), run.module.usage


class Queue(Two):
    """A second branch that follows the first, and a ring of what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.right.requires_grad_(False)
        self.register_buffer("ring", torch.linspace(-1, 1, 24).view(6, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        query = F.normalize(self.left(x), dim=1)
        with torch.no_grad():
            for mine, other in zip(self.left.parameters(), self.right.parameters(), strict=True):
                other.data = other.data * 0.9 + mine.data * 0.1
            shuffled = torch.randperm(len(x))
            key = F.normalize(self.right(x[shuffled]), dim=1)[torch.argsort(shuffled)]
        found = torch.cat([(query * key).sum(1, keepdim=True), query @ self.ring.clone().T], 1)
        place = int(self.place)
        self.ring[place : place + len(x)] = key
        self.place[0] = (place + len(x)) % 6
        return found


@program(Queue)
def queue_of_keys(run: Run) -> Steps:
    for _ in range(3):
        yield run.learn(rand(grad=True)), run.module.ring, run.module.place


def halts(self: Any, x: Tensor) -> tuple[Any, ...]:
    halted, steps = torch.zeros(len(x), dtype=torch.bool), 0
    while not halted.all() and steps < 6:
        x = torch.where(halted[:, None], x, torch.tanh(self.left(x)))
        halted, steps = halted | (x.abs().mean(1) < 0.35), steps + 1
    rows = halted.nonzero().flatten().tolist()
    return self.right(x), steps, {row: x[row, 0].item() > 0 for row in rows}


@program(two(halts))
def steps_until_all_halt(run: Run) -> Steps:
    for seed in (3, 4, 5):
        yield run.learn(rand(4, 4, seed=seed, grad=True))


def seen(self: Any, x: Tensor) -> Tensor:
    h = self.left(x)
    self.seen = [h.detach(), h[:1]]
    print(end="")
    return self.right(h) + self.seen[0] * 2 + self.seen[1]


@program(two(seen, seen=None))
def features_that_are_kept(run: Run) -> Steps:
    for rows in (3, 1):
        yield run.learn(rand(rows, 4, grad=True)), run.module.seen
