"""More models that jobs train: a result that a loss leaves out, layers of torch that look at values or keep what they made."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class Aside(nn.Module):
    """A result that the loss leaves out, made of what the first stage passes; a value that is read without a gradient; and a
    parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.side, self.still, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.layers, self.none = nn.ModuleList(nn.Linear(16, 16) for _ in range(6)), nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = x.masked_fill(mask, 0.0)
        side, still = torch.tanh(self.side(x)), self.still(x).detach()
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return {"aside": self.last(side + x), "logits": x + still + self.none.sum()}


class Averaging(nn.Module):
    """Norms in train mode whose statistics are means of all batches, and which are read."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(16, momentum=None) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = x.masked_fill(mask, 0.0)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.tanh(norm(layer(x)))
            x = x + norm.running_mean + norm.running_var / norm.num_batches_tracked
        return {"logits": x}


class Cooling(nn.Module):
    """Buffers that each forward writes, and that its backward reads: the next microbatch has written them by then."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.register_buffer("warmth", torch.ones(()))
        self.register_buffer("middle", torch.zeros(16))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = x.masked_fill(mask, 0.0)
        for layer in self.layers[:4]:
            x = x + torch.relu(layer(x))
        self.warmth.mul_(0.95)
        self.middle.lerp_(x.detach().mean(0), 0.1)
        for layer in self.layers[4:]:
            x = x + torch.tanh(layer(x * self.warmth)) * (1 + self.middle)
        return {"logits": x}


class Late(nn.Module):
    """Masks and tables that a first call makes, and all others find."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.mask: Tensor | None = None
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x, width = x.masked_fill(mask, 0.0), x.shape[1]
        if self.mask is None or len(self.mask) < width:
            self.mask = torch.ones(width, width).tril() / width
        if width not in self.tables:
            self.tables[width] = torch.arange(width).cos()
        for layer in self.layers:
            x = x + torch.relu(layer(x @ self.mask[:width, :width])) * self.tables[width]
        return {"logits": x}


class Mapped(nn.Module):
    """What a transform of functorch gives at the beginning, and the end reads; the tracer says that it needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(16, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = self.first(x.masked_fill(mask, 0.0))
        mapped = torch.vmap(lambda row: row.sin() * row)(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return {"logits": x * mapped.cos()}


class Hinted(nn.Module):
    """Attention under a mask of its own, which torch looks at; norms of weights whose buffers are put in their own places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2)
        self.head = parametrizations.spectral_norm(nn.Linear(16, 50))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        mask = torch.triu(torch.full((ids.shape[1], ids.shape[1]), float("-inf")), 1)
        return {"logits": self.head(self.encoder(self.embed(ids), mask=mask))}


class Beside(nn.Module):
    """A result of the last stage that no other stage leads to, and which the loss keeps for its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(nn.Linear(16, 16) for _ in range(8)), nn.Linear(16, 16)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        first = x.masked_fill(mask, 0.0)
        x = first.softmax(-1)
        for layer in self.layers:
            x = torch.relu(layer(x)) * 1.5
        return {"logits": x, "aside": self.last(first)}


class Plain(nn.Module):
    """Layers in a row and nothing else, which a tensor axis takes in pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        x = x.masked_fill(mask, 0.0)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"logits": x}


class Picked(nn.Module):
    """Results of as many rows as there are, found before all layers and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        kept, logits = torch.nonzero(mask[:, 0]), x.masked_fill(mask, 0.0)
        for layer in self.layers:
            logits = logits + torch.tanh(layer(logits))
        return {"kept": kept, "aside": logits[mask.any(-1)], "logits": logits}
