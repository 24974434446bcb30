"""Graph networks, point clouds, differential equations, agents."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _models.registry import model, normal


def graph(batch: int, generator: torch.Generator) -> tuple[Any, ...]:
    nodes = 6 * batch
    return torch.randn(nodes, 8, generator=generator), torch.randint(0, nodes, (2, 4 * nodes), generator=generator)


@model(graph)
class GraphConvolution(nn.Module):
    """GCN by hand: degrees by scatter, messages by index, sums by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(8, 16), nn.Linear(16, 4)

    def propagate(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index
        degree = torch.zeros(x.size(0), device=x.device).scatter_add_(0, col, torch.ones_like(col, dtype=x.dtype))
        norm = degree.clamp(min=1).pow(-0.5)
        messages = (norm[row] * norm[col]).unsqueeze(1) * x[row]
        return torch.zeros_like(x).index_add_(0, col, messages)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.propagate(self.lin1(x), edge_index))
        x = F.dropout(x, 0.5, self.training)
        return F.log_softmax(self.propagate(self.lin2(x), edge_index), dim=1)


@model(graph)
class GraphAttention(nn.Module):
    """GAT by hand: a softmax over the edges of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.heads = nn.Linear(8, 16, bias=False), 2
        self.att = nn.Parameter(torch.randn(1, 2, 16) * 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        nodes = x.size(0)
        h = self.lin(x).view(nodes, self.heads, 8)
        source, target = edge_index[0], edge_index[1]
        score = F.leaky_relu((torch.cat([h[source], h[target]], -1) * self.att).sum(-1), 0.2)
        index = target.unsqueeze(-1).expand_as(score)
        top = torch.full((nodes, self.heads), -1e9).scatter_reduce(0, index, score, "amax")
        weight = (score - top[target]).exp()
        total = torch.zeros(nodes, self.heads).scatter_add(0, index, weight)
        alpha = weight / (total[target] + 1e-16)
        out = torch.zeros_like(h)
        out.index_add_(0, target, alpha.unsqueeze(-1) * h[source])
        return F.elu(out.flatten(1))


@model(lambda batch, generator: (torch.randn(batch, 7, 5, generator=generator), torch.ones(batch, 7, 7)))
class MessagePassing(nn.Module):
    """MPNN on a dense adjacency: one layer's weights are used for every round."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.message, self.update = nn.Linear(5, 8), nn.Linear(16, 8), nn.GRUCell(8, 8)
        self.readout = nn.Linear(8, 1)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.embed(x)
        b, n, d = h.shape
        for _ in range(3):
            pairs = torch.cat([h.unsqueeze(2).expand(b, n, n, d), h.unsqueeze(1).expand(b, n, n, d)], -1)
            m = (self.message(pairs) * adjacency.unsqueeze(-1)).sum(2)
            h = self.update(m.reshape(-1, d), h.reshape(-1, d)).view(b, n, d)
        return self.readout(h).sum(1)


@model(normal(3, 24))
class PointNet(nn.Module):
    """A network that predicts a transform, with an identity that is made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.tnet = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.tfc = nn.Linear(16, 9)
        self.conv, self.bn, self.fc = nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch = x.size()[0]
        t = self.tfc(torch.max(self.tnet(x), 2, keepdim=True)[0].view(-1, 16))
        t = (t + torch.eye(3).flatten().repeat(batch, 1)).view(-1, 3, 3)
        x = torch.bmm(x.transpose(2, 1), t).transpose(2, 1)
        x = F.relu(self.bn(self.conv(x))).max(2)[0]
        return self.fc(x), t


@model(normal(4))
class NeuralOde(nn.Module):
    """Runge-Kutta steps with one derivative network: sixteen calls of it."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, y: Tensor) -> Tensor:
        h = 0.25
        for _ in range(4):
            k1 = self.f(y)
            k2 = self.f(y + h * k1 / 2)
            k3 = self.f(y + h * k2 / 2)
            k4 = self.f(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y


@model(lambda batch, generator: (torch.rand(batch, 3, generator=generator), torch.rand(batch, 3, generator=generator)))
class RadianceField(nn.Module):
    """NeRF's network: positional encoding by a loop, a skip in the middle, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.pts_linears = nn.ModuleList([nn.Linear(27, 32), *(nn.Linear(59 if i == 1 else 32, 32) for i in range(3))])
        self.feature, self.alpha, self.views, self.rgb = (
            nn.Linear(32, 32),
            nn.Linear(32, 1),
            nn.Linear(59, 16),
            nn.Linear(16, 3),
        )

    def encode(self, x: Tensor) -> Tensor:
        out = [x]
        for power in range(4):
            for function in (torch.sin, torch.cos):
                out.append(function(2.0**power * x))
        return torch.cat(out, -1)

    def forward(self, points: Tensor, views: Tensor) -> Tensor:
        encoded = self.encode(points)
        h = encoded
        for i, layer in enumerate(self.pts_linears):
            h = F.relu(layer(h))
            if i == 1:
                h = torch.cat([encoded, h], -1)
        alpha = self.alpha(h)
        h = F.relu(self.views(torch.cat([self.feature(h), self.encode(views)], -1)))
        return torch.cat([self.rgb(h), alpha], -1)


@model(normal(6))
class ActorCritic(nn.Module):
    """Two heads on one trunk; a distribution is made and sampled in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.actor, self.critic = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)
        self.log_std = nn.Parameter(torch.zeros(3))

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.tanh(self.trunk(state))
        policy = torch.distributions.Normal(self.actor(h), self.log_std.exp().expand(state.size(0), 3))
        action = policy.rsample()
        return action, policy.log_prob(action).sum(-1), self.critic(h).squeeze(-1)
