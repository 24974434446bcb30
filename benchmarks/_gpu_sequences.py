"""Models of `gpu.py` that read words, images as patches, or tables: BERT, an encoder-decoder as T5, CLIP, MMoE."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention of one sequence to another, or to itself."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.view(y.shape[0], y.shape[1], self.heads, -1).transpose(1, 2)

        found = F.scaled_dot_product_attention(
            split(self.q(x)), split(self.k(other)), split(self.v(other)), is_causal=self.causal
        )
        return self.out(found.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A transformer's layer, normalised before each part; with attention to a second sequence if it ``crosses``."""

    def __init__(self, width: int, heads: int, causal: bool = False, crosses: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 + crosses))
        self.own = Attention(width, heads, causal)
        self.cross = Attention(width, heads) if crosses else None
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        h = self.norms[0](x)
        x = x + self.own(h, h)
        if self.cross is not None and memory is not None:
            x = x + self.cross(self.norms[-1](x), memory)
        return x + self.wide(self.norms[1](x))


class Words(nn.Module):
    """Tokens and places, then layers."""

    def __init__(self, width: int, depth: int, length: int, vocabulary: int, causal: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, max(1, width // 64), causal) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Bert(nn.Module):
    """BERT-base: an encoder, and what a classifier reads."""

    def __init__(self, width: int = 768, depth: int = 12, length: int = 128, vocabulary: int = 30522) -> None:
        super().__init__()
        self.encoder = Words(width, depth, length, vocabulary)
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(tokens)
        return hidden, self.pooler(hidden[:, 0])


class EncoderDecoder(nn.Module):
    """As T5-base: the decoder's first layers need the encoder only at their second part."""

    def __init__(self, width: int = 768, depth: int = 12, length: int = 128, vocabulary: int = 32128) -> None:
        super().__init__()
        self.encoder = Words(width, depth, length, vocabulary)
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, max(1, width // 64), causal=True, crosses=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, x = self.encoder(source), self.words(target)
        for layer in self.layers:
            x = layer(x, memory)
        return self.head(self.norm(x))


class Patches(nn.Module):
    """A vision transformer's encoder."""

    def __init__(self, width: int, depth: int, side: int, patch: int) -> None:
        super().__init__()
        count = (side // patch) ** 2
        self.patches = nn.Conv2d(3, width, patch, patch, bias=False)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.randn(count + 1, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, max(1, width // 64)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.norm(x[:, 0])


class Clip(nn.Module):
    """CLIP ViT-B/32: two towers that meet in a product."""

    def __init__(self, widths: Sequence[int] = (768, 512), depth: int = 12, side: int = 224, vocabulary: int = 49408) -> None:
        super().__init__()
        self.sight, self.text = Patches(widths[0], depth, side, 32), Words(widths[1], depth, 77, vocabulary, causal=True)
        self.seen, self.read = nn.Linear(widths[0], 512, bias=False), nn.Linear(widths[1], 512, bias=False)

    def forward(self, pixels: Tensor, tokens: Tensor) -> Tensor:
        images = F.normalize(self.seen(self.sight(pixels)), dim=-1)
        texts = F.normalize(self.read(self.text(tokens)[:, -1]), dim=-1)
        return images @ texts.T


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers = (layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU()))
    return nn.Sequential(*layers)[:-1]


class Mmoe(nn.Module):
    """Experts that several tasks share, and for each task a gate and a tower.

    Source: Ma et al., "Modeling task relationships in multi-task learning with multi-gate mixture-of-experts", KDD 2018.
    """

    def __init__(self, width: int = 1024, experts: int = 8, tasks: int = 3) -> None:
        super().__init__()
        self.experts = nn.ModuleList(perceptron(width, width, width, width // 2) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(perceptron(width // 2, width // 4, 64, 1) for _ in range(tasks))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = torch.stack([expert(x) for expert in self.experts], 1)
        mixed = (torch.einsum("be,bew->bw", gate(x).softmax(-1), found) for gate in self.gates)
        return tuple(tower(each) for tower, each in zip(self.towers, mixed, strict=True))


class HostAndGpu(nn.Module):
    """Tables that lie in the host's memory, beside layers on the GPU that do not need them until the end."""

    def __init__(self, width: int = 1024, depth: int = 24, rows: int = 200_000, tables: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, 64, mode="sum") for _ in range(tables))
        self.mixed = perceptron(64 * tables, 256, 256)
        self.body = perceptron(*[width] * depth)
        self.head = nn.Linear(width + 256, 1)

    def looked_up(self, indices: Tensor) -> Tensor:
        """What the host does."""
        return self.mixed(torch.cat([table(indices[n]) for n, table in enumerate(self.tables)], 1))

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        return self.head(torch.cat([self.body(x), self.looked_up(indices).to(x.device)], 1))
