"""What the jobs on checkpoints train: tied embeddings, a constant buffer, and a weight too small to be divided evenly."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WORDS, WIDTH, ROWS = 40, 16, 16


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.gate = nn.Linear(width, 1)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((width,), 1.5))

    def forward(self, ids: Tensor) -> Tensor:
        first = x = self.embedding(ids)
        for layer in self.layers:
            x = self.dropout(torch.tanh(layer(x)))
        return self.head(self.norm(x * self.scale + first * self.gate(x).sigmoid()))


def build(dropout: float = 0.0, width: int = WIDTH) -> Net:
    torch.manual_seed(0)
    return Net(dropout, width)


def freeze(model: Net) -> Net:
    """What the first of two stages has trains nothing, and a tie is in both."""
    for parameter in (*model.embedding.parameters(), *model.layers.parameters()):
        parameter.requires_grad_(False)
    return model


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(output.flatten(0, 1), target.flatten())


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The batch of a step, whichever run makes it."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(WORDS, (ROWS, 5), generator=generator), torch.randint(WORDS, (ROWS, 5), generator=generator)


def optimizer_of(model: nn.Module, rate: float = 1e-2) -> torch.optim.Optimizer:
    """Two groups, for what checkpoints keep of each parameter: its group's options."""
    weights = [each for each in model.parameters() if each.dim() > 1]
    rest = [each for each in model.parameters() if each.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate)


def momentum_of(model: nn.Module, rate: float = 1e-2) -> torch.optim.Optimizer:
    """Of another kind: its state is there from the first step, and no count; and it knows the names of what it holds."""
    return torch.optim.SGD(model.named_parameters(), lr=rate * 10, momentum=0.9, nesterov=True)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """In one process."""
    losses = []
    for number in steps:
        ids, target = batch(number)
        optimizer.zero_grad()
        loss = loss_of(model(ids), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
