"""Models that are written as branches: towers, ensembles, experts, a recommender, NASNet's cells, CLIP.

What is branches says so (`Branched`), so that the same module can be run with ``torch.jit.fork`` as one would by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Calls = Sequence[tuple[Callable[..., Any], tuple[Tensor, ...]]]


class Branched(nn.Module):
    """A module whose forward is branches that do not need each other, and a join; ``by_hand`` forks all but the last."""

    by_hand = False

    def branches(self, *inputs: Tensor) -> Calls:
        """What to call with what; any order gives the same."""
        raise NotImplementedError

    def join(self, *parts: Any) -> Any:
        """The result, from the branches' results."""
        raise NotImplementedError

    def forward(self, *inputs: Tensor) -> Any:
        calls = self.branches(*inputs)
        if not self.by_hand:
            return self.join(*(branch(*given) for branch, given in calls))
        *others, (last, given) = calls
        started = [torch.jit.fork(branch, *arguments) for branch, arguments in others]
        result = last(*given)
        return self.join(*(torch.jit.wait(future) for future in started), result)


class Towers(Branched):
    """Branches that start at one input and are summed at the end."""

    def __init__(self, make: Callable[[], nn.Module], count: int = 2) -> None:
        super().__init__()
        self.towers = nn.ModuleList(make() for _ in range(count))

    def branches(self, *inputs: Tensor) -> Calls:
        return [(tower, inputs) for tower in self.towers]

    def join(self, *parts: Tensor) -> Tensor:
        return torch.stack(parts).sum(0)


class Ensemble(Towers):
    """Small nets that vote with their probabilities."""

    def join(self, *parts: Tensor) -> Tensor:
        return torch.stack(parts).softmax(-1).mean(0)


class Experts(Towers):
    """MMoE: experts that two tasks share, and for each task a gate and a tower.

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate mixture-of-experts", KDD 2018.
    """

    def __init__(self, width: int, experts: int = 8, tasks: int = 2) -> None:
        super().__init__(lambda: perceptron(width, width, width // 2), experts)
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(tasks))
        self.heads = nn.ModuleList(perceptron(width // 2, 64, 1) for _ in range(tasks))

    def branches(self, *inputs: Tensor) -> Calls:
        return [*((expert, inputs) for expert in self.towers), (self.weights, inputs)]

    def weights(self, x: Tensor) -> Tensor:
        return torch.stack([gate(x).softmax(-1) for gate in self.gates])

    def join(self, *parts: Tensor) -> Tensor:
        mixed = torch.einsum("tbe,ebw->tbw", parts[-1], torch.stack(parts[:-1]))
        return torch.cat([head(each) for head, each in zip(self.heads, mixed.unbind(), strict=True)], 1)


class Recommender(Branched):
    """DLRM: bags of embeddings beside an MLP over dense features, the dot products of all pairs, and an MLP over those.

    Source: Naumov et al., "Deep learning recommendation model for personalization and recommendation systems", 2019.
    """

    def __init__(self, tables: int = 8, rows: int = 20_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = perceptron(13, 512, 256, width)
        self.top = perceptron(width + tables * (tables + 1) // 2, 256, 128, 1)
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1), persistent=False)

    def branches(self, *inputs: Tensor) -> Calls:
        dense, items = inputs
        return [(self.bags, (items,)), (self.bottom, (dense,))]

    def bags(self, items: Tensor) -> Tensor:
        """``items`` are rows of each table: (batch, tables, items in a bag)."""
        return torch.stack([table(items[:, number]).sum(1) for number, table in enumerate(self.tables)], 1)

    def join(self, *parts: Tensor) -> Tensor:
        bags, dense = parts
        features = torch.cat([dense[:, None], bags], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)).sigmoid()


class Cell(Branched):
    """A normal cell of NASNet-A: five sums of two ops on the two cells before it.

    Source: Zoph et al., "Learning transferable architectures for scalable image recognition", CVPR 2018, figure 4.
    """

    def __init__(self, before: int, last: int, width: int) -> None:
        super().__init__()
        self.fit_before, self.fit_last = convolution(before, width, 1), convolution(last, width, 1)
        kernels = {"a": 3, "b": 3, "c": 5, "d": 5, "e": 3}
        self.separable = nn.ModuleDict({name: separable(width, kernel) for name, kernel in kernels.items()})
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)

    def forward(self, before: Tensor, last: Tensor) -> Any:
        return super().forward(self.fit_before(before), self.fit_last(last))

    def branches(self, *inputs: Tensor) -> Calls:
        before, last = inputs
        ops = self.separable
        return [
            (lambda h: ops["a"](h) + h, (last,)),
            (lambda p, h: ops["b"](p) + ops["c"](h), (before, last)),
            (lambda p, h: self.pool(h) + p, (before, last)),
            (lambda p: self.pool(p) + self.pool(p), (before,)),
            (lambda p: ops["d"](p) + ops["e"](p), (before,)),
            (lambda p: p, (before,)),
        ]

    def join(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, 1)


class Cells(nn.Module):
    """NASNet-like: a stem, normal cells one after the other, and a classifier."""

    def __init__(self, width: int = 32, count: int = 6) -> None:
        super().__init__()
        self.stem = convolution(3, width, 3, stride=2)
        widths = [width, width, *([6 * width] * count)]
        self.cells = nn.ModuleList(Cell(widths[number], widths[number + 1], width) for number in range(count))
        self.head = nn.Linear(6 * width, 100)

    def forward(self, x: Tensor) -> Tensor:
        before = last = self.stem(x)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.head(last.mean((2, 3)))


# Parts ----------------------------------------------------------------------------------------------------------------


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def convolution(source: int, target: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """ReLU, convolution, batch norm: NASNet's order."""
    layer = nn.Conv2d(source, target, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.ReLU(), layer, nn.BatchNorm2d(target))


def separable(width: int, kernel: int) -> nn.Sequential:
    """A depthwise and a pointwise convolution, twice."""

    def once() -> list[nn.Module]:
        depthwise = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
        return [nn.ReLU(), depthwise, nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)]

    return nn.Sequential(*once(), *once())


def small_net() -> nn.Sequential:
    """A classifier of images of 32 x 32."""
    layers = [layer for a, b in ((3, 16), (16, 32), (32, 64)) for layer in (nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))
