"""Further programs of one module: its parts, weights, buffers and arguments are others by then, of other kinds."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from .program import Run, Steps, Towers, Two, program, raised, rand


class Adapted(nn.Module):
    """A layer and what is learnt beside it, of low rank."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.merged = base.requires_grad_(False), False
        self.down = nn.Parameter(torch.full((2, base.in_features), 0.1))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) if self.merged else self.base(x) + x @ self.down.T @ self.up.T

    @torch.no_grad()
    def merge(self, merged: bool) -> None:
        self.base.weight.add_(self.up @ self.down, alpha=1.0 if merged else -1.0)
        self.merged = merged


@program(Towers, slow=True)
def adapters_that_are_merged(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True))
    module.left, module.head = Adapted(module.left), Adapted(module.head)
    yield run.learn(rand(grad=True)), list(module.state_dict())
    with torch.no_grad():
        module.left.up.fill_(0.3)
    for merged in (True, False):
        module.left.merge(merged)
        yield run.learn(rand(grad=True))
    module.left = module.left.base
    yield run.learn(rand(grad=True)), list(module.state_dict())


@program(Towers)
def forward_of_a_part_wrapped(run: Run) -> Steps:
    part, weight = run.module.left, torch.full((4, 4), 0.1)
    plain = part.forward
    yield run.learn(rand(grad=True))
    part.forward = lambda x: plain(x) + x @ weight
    yield run.learn(rand(grad=True))
    weight.mul_(2)
    yield run.learn(rand(grad=True))
    del part.forward
    yield run.learn(rand(grad=True))


class Rounded(nn.Module):
    """A layer whose weight is stored in 8 bits."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("rounded", (layer.weight.detach() / scale).round().to(torch.int8))
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.rounded.to(x.dtype) * self.scale, self.bias)


@program(Towers, slow=True)
def quantised_by_hand(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True))
    module.left = Rounded(module.left)
    yield run.learn(rand(grad=True)), list(module.state_dict())
    module.head = Rounded(module.head)
    yield run.learn(rand(5, 4, grad=True))


class Shifts(Two):
    """Buffers of which one may not be there."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(4))
        self.register_buffer("mask", None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x) * self.shift + self.right(x)
        return y if self.mask is None else y.masked_fill(self.mask[: len(x)], 0)


@program(Shifts, slow=True)
def buffers_of_other_kinds(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True))
    for shift in (torch.full((1,), 2.0), torch.full((3, 1), 2.0), torch.tensor(3), torch.ones(4, dtype=torch.float64)):
        module.shift = shift
        yield run.learn(rand(grad=True))
    module.mask = torch.eye(4).bool()
    yield run.learn(rand(grad=True)), list(module.state_dict())
    del module.shift
    module.shift, module.mask = nn.Parameter(torch.full((4,), 2.0)), None
    yield run.learn(rand(grad=True)), list(module.state_dict())


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.factor


@program(Towers, slow=True)
def parametrizations_in_a_row(run: Run) -> Steps:
    module = run.module
    for name, factor in (("weight", 2.0), ("weight", 0.25), ("bias", 3.0)):
        parametrize.register_parametrization(module.left, name, Scaled(factor))
        yield run.learn(rand(grad=True))
    module.left.parametrizations.weight[1].factor = 5.0
    yield run.learn(rand(grad=True))
    parametrize.remove_parametrizations(module.left, "weight", leave_parametrized=False)
    yield run.learn(rand(grad=True)), list(module.state_dict())


@program(Towers, slow=True)
def one_part_of_another_dtype(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True))
    for dtype in (torch.float64, torch.bfloat16):
        module.head.to(dtype)
        yield raised(lambda: run(rand()))
        handle = module.head.register_forward_pre_hook(lambda part, args, dtype=dtype: (args[0].to(dtype),))
        yield run.learn(rand(grad=True))
        handle.remove()


class Nested(Two):
    def forward(self, x: Tensor, *more: Any, **scales: Any) -> dict[str, Tensor]:
        y = self.left(x)
        for each in more:
            y = y + (each["a"] if isinstance(each, dict) else sum(each) if isinstance(each, (list, tuple)) else each)
        return {"y": y, **{name: self.right(x) * scale for name, scale in scales.items()}}


Pair = collections.namedtuple("Pair", "one other")


@program(Nested, slow=True)
def arguments_nested_otherwise(run: Run) -> Steps:
    for more in (
        (),
        (1.5,),
        ([1.0, rand(grad=True)],),
        ({"a": rand()}, (2, 3)),
        ([], torch.tensor(1)),
        (Pair(1, rand()), True),
    ):
        yield run.learn(rand(), *more)
    yield run.learn(rand(), scale=2), run.learn(rand(), scale=rand(1, 4), other=3.0), raised(lambda: run(rand(), None))


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.left_out, self.act = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), set[int](), torch.relu

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            if number not in self.left_out:
                x = x + self.act(layer(x))
        return x


@program(Chain, slow=True)
def layers_left_out_and_repeated(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand(grad=True))
    module.layers = module.layers[:2]
    module.left_out.add(0)
    yield run.learn(rand(grad=True)), list(module.state_dict())
    module.left_out = {1}
    module.layers.append(module.layers[0])
    module.act = nn.GELU()
    yield run.learn(rand(grad=True)), list(module.state_dict())
    module.layers[1] = nn.Identity()
    module.layers.insert(0, copy.deepcopy(module.layers[0]))
    yield run.learn(rand(grad=True)), len(list(module.parameters()))


@program(Chain, slow=True)
def class_of_a_part_assigned(run: Run) -> Steps:
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    part = run.module.layers[0]
    for kind in (nn.Linear, Twice, nn.Linear):
        part.__class__ = kind
        yield run.learn(rand(grad=True))


class Remembers(Two):
    def __init__(self) -> None:
        super().__init__()
        self.cache: Tensor | None = None
        self.table: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        y = self.left(x)
        fits = self.cache is not None and self.cache.shape == y.shape
        self.cache = self.cache * 0.5 + y.detach() * 0.5 if fits and self.cache is not None else y.detach()
        self.table[len(x)] = self.cache.mean()
        return y + self.cache + self.right(x) * len(self.table)


@program(Remembers, watch="cache table")
def caches_reset_by_the_caller(run: Run) -> Steps:
    module = run.module
    yield run.learn(rand()), run.learn(rand(5, 4)), dict(module.table)
    module.cache, module.table = None, {}
    yield run.learn(rand()), module.cache, dict(module.table)
    module.cache = torch.ones(3, 4)
    yield run.learn(rand()), module.cache, copy.deepcopy(module)(rand()), module.cache
