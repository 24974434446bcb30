"""Recommenders, experts and multi-task models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from _models.registry import model, normal


def clicks(batch: int, generator: torch.Generator) -> tuple[Any, ...]:
    dense = torch.rand(batch, 4, generator=generator)
    indices = [torch.randint(0, 20, (batch * 2,), generator=generator) for _ in range(3)]
    offsets = [torch.arange(0, batch * 2, 2) for _ in range(3)]
    return dense, indices, offsets


@model(clicks)
class Dlrm(nn.Module):
    """Bags of embeddings and a bottom MLP; the dot products of all pairs of features."""

    def __init__(self) -> None:
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3))
        self.bot_l = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top_l = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def interact(self, x: Tensor, ly: list[Tensor]) -> Tensor:
        batch, d = x.shape
        t = torch.cat([x, *ly], dim=1).view((batch, -1, d))
        z = torch.bmm(t, torch.transpose(t, 1, 2))
        _, ni, nj = z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        return torch.cat([x, z[:, li, lj]], dim=1)

    def forward(self, dense: Tensor, indices: list[Tensor], offsets: list[Tensor]) -> Tensor:
        x = self.bot_l(dense)
        ly = [bag(i, o) for bag, i, o in zip(self.emb_l, indices, offsets, strict=True)]
        return self.top_l(self.interact(x, ly)).clamp(1e-4, 1 - 1e-4)


def fields(batch: int, generator: torch.Generator) -> tuple[Any, ...]:
    return (torch.randint(0, 10, (batch, 5), generator=generator),)


@model(fields)
class DeepFm(nn.Module):
    """First order, second order and deep part over one table with offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.arange(5) * 10, persistent=False)
        self.linear, self.embedding, self.bias = nn.Embedding(50, 1), nn.Embedding(50, 8), nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(
            nn.Linear(40, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1), nn.Flatten(0)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.offsets.unsqueeze(0)
        e = self.embedding(x)
        fm = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1)
        return torch.sigmoid(self.bias + self.linear(x).sum((1, 2)) + fm + self.mlp(e.view(-1, 40)))


@model(
    lambda batch, generator: {
        "batch": {
            "user": torch.randint(0, 30, (batch,), generator=generator),
            "item": torch.randint(0, 30, (batch,), generator=generator),
            "history": torch.randint(0, 30, (batch, 6), generator=generator),
        }
    }
)
class TwoTower(nn.Module):
    """Retrieval: users and items meet only in a dot product. One dict goes in, one comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(30, 16), nn.Embedding(30, 16, padding_idx=0)
        self.user_tower = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
        self.item_tower = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.temperature = nn.Parameter(torch.tensor(0.1))

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        history = batch["history"]
        mask = (history != 0).unsqueeze(-1)
        seen = (self.items(history) * mask).sum(1) / mask.sum(1).clamp(min=1)
        user = self.user_tower(torch.cat([self.users(batch["user"]), seen], -1))
        item = self.item_tower(self.items(batch["item"]))
        return {"logits": user @ item.T / self.temperature, "user": user, "item": item}


@model(normal(12))
class MixtureOfExpertsMultiTask(nn.Module):
    """MMoE: shared experts, a gate and a tower for every task."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(12, 16), nn.ReLU()) for _ in range(4))
        self.gates = nn.ParameterList(nn.Parameter(torch.randn(12, 4) * 0.1) for _ in range(2))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        experts = torch.stack([e(x) for e in self.experts])
        gated = [(x @ g).softmax(-1).t().unsqueeze(2).expand(-1, -1, 16) * experts for g in self.gates]
        return [t(torch.sum(v, dim=0)) for t, v in zip(self.towers, gated, strict=True)]


@model(normal(12))
class SwitchRouting(nn.Module):
    """Top-1 routing by index: each expert sees only its own rows, so shapes depend on data."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(12, 3)
        self.experts = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero(as_tuple=True)[0]
            out[rows] = expert(x[rows]) * weight[rows, None]
        return out
