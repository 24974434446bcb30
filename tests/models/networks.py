"""The shapes that people partition: towers, heads, blocks, recurrent nets and attention, in small."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from .base import Model, model, numbers


def tower(inputs: int, outputs: int) -> nn.Sequential:
    """Two layers and an in-place activation."""
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(inplace=True), nn.Linear(8, outputs))


@model
class TwoTowers(Model):
    """A recommender: two inputs, two towers that share nothing, one product."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = tower(6, 4), tower(5, 4)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.user(user) * self.item(item)).sum(1)

    def example_inputs(self) -> tuple[object, ...]:
        return numbers(3, 6), numbers(3, 5, seed=1)


@model
class Siamese(Model):
    """One tower, two inputs: two branches with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = tower(6, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.cosine_similarity(self.tower(left), self.tower(right))

    def example_inputs(self) -> tuple[object, ...]:
        return numbers(3, 6), numbers(3, 6, seed=1)


@model
class EncoderHeads(Model):
    """An encoder, and a decoder and a classifier that both read its code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.classifier = tower(6, 4), tower(4, 6), tower(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        code = self.encoder(x)
        return {"image": self.decoder(code), "logits": self.classifier(code)}


def conv(inputs: int, outputs: int, size: int) -> nn.Sequential:
    """Convolution, norm, in-place activation, the size kept."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Images(Model):
    """Takes a batch of small images."""

    def example_inputs(self) -> tuple[object, ...]:
        return (numbers(2, 3, 8, 8),)


@model
class Inception(Images):
    """Four branches of unequal length between a fork and a `cat`, twice: two levels of joins."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self._block(channels) for channels in (3, 8))

    def _block(self, channels: int) -> nn.ModuleDict:
        pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(channels, 2, 1))
        return nn.ModuleDict(
            {
                "one": conv(channels, 2, 1),
                "three": nn.Sequential(conv(channels, 3, 1), conv(3, 2, 3)),
                "five": nn.Sequential(conv(channels, 3, 1), conv(3, 2, 5)),
                "pool": pooled,
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.cat([branch(x) for branch in block.values()], 1)
        return x.mean((2, 3))


@model
class Residual(Images):
    """The block of a ResNet: a skip, a projection beside it, and `+=` at the join."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.project, self.relu = nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += self.project(x)
        return self.relu(out)


@model
class LongSkips(Images):
    """A U-Net in small: each level's value waits for the whole depth below it."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([conv(3, 4, 3), conv(4, 4, 3)])
        self.up = nn.ModuleList([conv(8, 4, 3), conv(8, 4, 3)])
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            skips.append(down(x))
            x = self.pool(skips[-1])
        for up in self.up:
            x = up(torch.cat([self.grow(x), skips.pop()], 1))
        return x


@model
class Ensemble(Model):
    """Four models that vote: the widest fork there is."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(tower(6, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


@model
class GatedExperts(Model):
    """A dense mixture of experts: every expert runs, and a gate weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList(tower(6, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(1).unsqueeze(2)
        return (torch.stack([expert(x) for expert in self.experts], 1) * weights).sum(1)


@model
class WeightNorm(Model):
    """Parametrized weights: what the layer calls its weight is computed anew on each read, from two other parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = weight_norm(nn.Linear(6, 4)), weight_norm(nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


@model
class SpectralNorm(Model):
    """A parametrization with state: in training mode each read of the weight also takes a step of power iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = spectral_norm(nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.layer(-x)


@model
class Recurrent(Model):
    """Two LSTMs in two directions of time: weights in a flat list, several outputs, nested."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards, self.backwards = nn.LSTM(6, 4, batch_first=True), nn.LSTM(6, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        ahead, (hidden, _) = self.forwards(x)
        behind, _ = self.backwards(x.flip(1))
        return torch.cat([ahead, behind.flip(1)], 2) + hidden.mean()

    def example_inputs(self) -> tuple[object, ...]:
        return (numbers(2, 5, 6),)


class Sequences(Model):
    """Takes a batch of short sequences."""

    def example_inputs(self) -> tuple[object, ...]:
        return (numbers(2, 5, 8),)


@model
class Attention(Sequences):
    """Self-attention in two branches; it returns its weights beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, weights = self.left(x, x, x)
        right, _ = self.right(x, x, x, need_weights=False)
        return left + right, weights


@model
class Transformer(Sequences):
    """torch's own encoder layer, which takes another path in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x


@model
class Bags(Model):
    """Embedding bags for two kinds of category: integer inputs, sums inside the op, offsets that cut a flat list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.EmbeddingBag(10, 4, mode="sum"), nn.EmbeddingBag(10, 4, mode="mean")

    def forward(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        return torch.cat([self.first(tokens, offsets), self.second(tokens, offsets)], 1)

    def example_inputs(self) -> tuple[object, ...]:
        return torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 4])
