"""Image models of `gpu.py`, from torch alone: GoogLeNet, Inception-v3, NASNet-A, RandWire and ResNet-50, at any width."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def unit(source: int, target: int, kernel: int | tuple[int, int], stride: int = 1, padding: bool = True) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    around = (sizes[0] // 2, sizes[1] // 2) if padding else (0, 0)
    return nn.Sequential(nn.Conv2d(source, target, sizes, stride, around, bias=False), nn.BatchNorm2d(target), nn.ReLU())


class Block(nn.Module):
    """Branches of one input, side by side in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def classifier(width: int, classes: int = 1000) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


# GoogLeNet ------------------------------------------------------------------------------------------------------------

GOOGLENET = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
"""Channels of each block's branches; ``None``: halve the image.

Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, table 1.
"""


def googlenet(part: int = 1) -> nn.Module:
    """GoogLeNet with batch norm; every number of channels divided by ``part``."""
    layers: list[nn.Module] = [unit(3, 64 // part, 7, 2), nn.MaxPool2d(3, 2, 1), unit(64 // part, 64 // part, 1)]
    layers += [unit(64 // part, 192 // part, 3), nn.MaxPool2d(3, 2, 1)]
    width = 192 // part
    for row in GOOGLENET:
        if row is None:
            layers.append(nn.MaxPool2d(3, 2, 1))
            continue
        a, b, c, d, e, f = (max(1, channels // part) for channels in row)
        pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(width, f, 1))
        three, five = (nn.Sequential(unit(width, x, 1), unit(x, y, 3)) for x, y in ((b, c), (d, e)))
        layers.append(Block(unit(width, a, 1), three, five, pool))
        width = a + c + e + f
    return nn.Sequential(*layers, classifier(width))


# Inception-v3 ---------------------------------------------------------------------------------------------------------


def inception_v3(part: int = 1) -> nn.Module:
    """Source: Szegedy et al., "Rethinking the inception architecture for computer vision", 2016."""

    def c(channels: int) -> int:
        return max(1, channels // part)

    def chain(source: int, *steps: tuple[int, int | tuple[int, int]], stride: int = 1) -> tuple[nn.Module, int]:
        units, width = [], source
        for number, (target, kernel) in enumerate(steps):
            last = number == len(steps) - 1 and stride > 1
            units.append(unit(width, c(target), kernel, stride if last else 1, padding=not last))
            width = c(target)
        return nn.Sequential(*units), width

    def pooled(source: int, target: int) -> tuple[nn.Module, int]:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(source, c(target), 1)), c(target)

    def forked(source: int, *steps: tuple[int, int | tuple[int, int]]) -> tuple[nn.Module, int]:
        trunk, width = chain(source, *steps)
        return nn.Sequential(trunk, Block(unit(width, c(384), (1, 3)), unit(width, c(384), (3, 1)))), 2 * c(384)

    layers: list[nn.Module] = [unit(3, c(32), 3, 2, False), unit(c(32), c(32), 3, 1, False), unit(c(32), c(64), 3)]
    layers += [nn.MaxPool2d(3, 2), unit(c(64), c(80), 1), unit(c(80), c(192), 3, 1, False), nn.MaxPool2d(3, 2)]
    width = c(192)

    def add(*branches: tuple[nn.Module, int]) -> None:
        nonlocal width
        layers.append(Block(*(branch for branch, _ in branches)))
        width = sum(channels for _, channels in branches)

    for pool in (32, 64, 64):
        five, three = chain(width, (48, 1), (64, 5)), chain(width, (64, 1), (96, 3), (96, 3))
        add(chain(width, (64, 1)), five, three, pooled(width, pool))
    halved = (nn.MaxPool2d(3, 2), width)
    add(chain(width, (384, 3), stride=2), chain(width, (64, 1), (96, 3), (96, 3), stride=2), halved)
    for n in (128, 160, 160, 192):
        seven = chain(width, (n, 1), (n, (1, 7)), (192, (7, 1)))
        twice = chain(width, (n, 1), (n, (7, 1)), (n, (1, 7)), (n, (7, 1)), (192, (1, 7)))
        add(chain(width, (192, 1)), seven, twice, pooled(width, 192))
    halved = (nn.MaxPool2d(3, 2), width)
    seven = chain(width, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3), stride=2)
    add(chain(width, (192, 1), (320, 3), stride=2), seven, halved)
    for _ in range(2):
        add(chain(width, (320, 1)), forked(width, (384, 1)), forked(width, (448, 1), (384, 3)), pooled(width, 192))
    return nn.Sequential(*layers, classifier(width))


# NASNet-A -------------------------------------------------------------------------------------------------------------


def separable(source: int, target: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Two depthwise separable convolutions, each behind a ReLU."""
    layers: list[nn.Module] = []
    for width, step in ((source, stride), (target, 1)):
        depthwise = nn.Conv2d(width, width, kernel, step, kernel // 2, groups=width, bias=False)
        layers += [nn.ReLU(), depthwise, nn.Conv2d(width, target, 1, bias=False), nn.BatchNorm2d(target)]
    return nn.Sequential(*layers)


def fitted(source: int, target: int) -> nn.Sequential:
    """ReLU, convolution, batch norm: brings a value to a cell's channels."""
    return nn.Sequential(nn.ReLU(), nn.Conv2d(source, target, 1, bias=False), nn.BatchNorm2d(target))


class Cell(nn.Module):
    """A cell of NASNet-A, which reads the two before it: five sums of two ops, side by side.

    Source: Zoph et al., "Learning transferable architectures for scalable image recognition", CVPR 2018, figure 4.
    """

    def __init__(self, before: int, now: int, width: int, reduces: bool) -> None:
        super().__init__()
        self.p, self.h, self.reduces = fitted(before, width), fitted(now, width), reduces
        kernels = (7, 5, 7, 5, 3) if reduces else (3, 3, 5, 5, 3)
        strides = (2, 2, 2, 2, 1) if reduces else (1, 1, 1, 1, 1)
        self.ops = nn.ModuleList(separable(width, width, k, s) for k, s in zip(kernels, strides, strict=True))
        self.channels = (4 if reduces else 6) * width

    def forward(self, before: Tensor, now: Tensor) -> Tensor:
        if before.shape[-1] != now.shape[-1]:
            before = F.interpolate(before, size=now.shape[-2:])
        p, h = self.p(before), self.h(now)
        one, two, three, four, five = self.ops
        if not self.reduces:
            average = F.avg_pool2d(p, 3, 1, 1)
            sums = [one(h) + h, two(p) + three(h), F.avg_pool2d(h, 3, 1, 1) + p, average + average, four(p) + five(p)]
            return torch.cat([p, *sums], 1)
        most, mean = F.max_pool2d(h, 3, 2, 1), F.avg_pool2d(h, 3, 2, 1)
        first, second, third = one(p) + two(h), most + three(p), mean + four(p)
        return torch.cat([second, third, F.avg_pool2d(first, 3, 1, 1) + second, most + five(first)], 1)


class NasNet(nn.Module):
    """NASNet-A (mobile): ``normal`` cells in each of three stages, a reduction between them."""

    def __init__(self, part: int = 1, normal: int = 4) -> None:
        super().__init__()
        width = 44 // part
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32))
        plan = [(width // 4, True), (width // 2, True)]
        for stage in range(3):
            plan += [(width << stage, True)] * (stage > 0) + [(width << stage, False)] * normal
        self.cells, before, now = nn.ModuleList(), 32, 32
        for channels, reduces in plan:
            cell = Cell(before, now, max(1, channels), reduces)
            self.cells.append(cell)
            before, now = now, cell.channels
        self.head = nn.Sequential(nn.ReLU(), classifier(now))

    def forward(self, x: Tensor) -> Tensor:
        before = now = self.stem(x)
        for cell in self.cells:
            before, now = now, cell(before, now)
        return self.head(now)


# RandWire -------------------------------------------------------------------------------------------------------------


class Wired(nn.Module):
    """A stage whose nodes are wired at random (Watts-Strogatz); a node sums what it reads, by weights that are learnt.

    Source: Xie et al., "Exploring randomly wired neural networks for image recognition", ICCV 2019.
    """

    def __init__(self, source: int, target: int, nodes: int, seed: int) -> None:
        super().__init__()
        graph = nx.connected_watts_strogatz_graph(nodes, 4, 0.75, seed=seed)
        self.sources = [sorted(other for other in graph.neighbors(node) if other < node) for node in range(nodes)]
        self.ends = [node for node in range(nodes) if all(other < node for other in graph.neighbors(node))]
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(max(1, len(some)))) for some in self.sources)
        self.ops = nn.ModuleList(self._op(target if some else source, target, 1 if some else 2) for some in self.sources)

    def _op(self, source: int, target: int, stride: int) -> nn.Sequential:
        depthwise = nn.Conv2d(source, source, 3, stride, 1, groups=source, bias=False)
        return nn.Sequential(nn.ReLU(), depthwise, nn.Conv2d(source, target, 1, bias=False), nn.BatchNorm2d(target))

    def forward(self, x: Tensor) -> Tensor:
        made: list[Tensor] = []
        for sources, weights, op in zip(self.sources, self.weights, self.ops, strict=True):
            gates = weights.sigmoid()
            made.append(op(sum(gates[n] * made[source] for n, source in enumerate(sources)) if sources else x))
        return torch.stack([made[end] for end in self.ends]).mean(0)


def randwire(part: int = 1, nodes: int = 32) -> nn.Module:
    """The small regime: 78 channels, three stages."""
    widths = [max(4, 78 // part) << stage for stage in range(3)]
    stem = nn.Sequential(unit(3, widths[0] // 2, 3, 2), unit(widths[0] // 2, widths[0], 3, 2))
    stages = [Wired(widths[max(0, n - 1)], width, nodes, seed=n) for n, width in enumerate(widths)]
    return nn.Sequential(stem, *stages, unit(widths[-1], 1280 // part, 1), classifier(1280 // part))


# ResNet-50 ------------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, source: int, width: int, stride: int) -> None:
        super().__init__()
        last = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.body = nn.Sequential(unit(source, width, 1), unit(width, width, 3, stride), last)
        plain = stride == 1 and source == 4 * width
        skip = nn.Sequential(nn.Conv2d(source, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.skip = nn.Identity() if plain else skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet50(part: int = 1, depths: Sequence[int] = (3, 4, 6, 3)) -> nn.Module:
    """Source: He et al., "Deep residual learning for image recognition", 2016."""
    width = 64 // part
    layers: list[nn.Module] = [unit(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    source = width
    for stage, depth in enumerate(depths):
        for number in range(depth):
            layers.append(Bottleneck(source, width << stage, 2 if stage and number == 0 else 1))
            source = 4 * (width << stage)
    return nn.Sequential(*layers, classifier(source))
