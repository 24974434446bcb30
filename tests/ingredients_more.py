"""More of `ingredients`: routing, memories, functions with gradients of their own, several modules that learn together."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch
from hostile.program import rand
from ingredients import floats, ingredient, tokens
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

# -- tables and routing ----------------------------------------------------------------------------------------------


@ingredient(tokens(5))
class embedding_bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(11, 4, mode="mean", padding_idx=0)
        self.most = nn.EmbeddingBag(11, 4, mode="max")
        self.total = nn.EmbeddingBag(11, 4, mode="sum", sparse=True, include_last_offset=True)

    def forward(self, ids: Tensor) -> Tensor:
        offsets = torch.arange(ids.shape[0] + 1) * ids.shape[1]
        return self.mean(ids) + self.most(ids) * self.total(ids.flatten(), offsets)


@ingredient(tokens(5))
class sparse_embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(11, 4, sparse=True, max_norm=1.0), nn.Embedding(11, 4, padding_idx=2)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.b.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.a(ids) + self.b(ids))


@ingredient()
class experts(nn.Module):
    """The two best experts of each row; rows are gathered and added back."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("load", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, slots, None])
        self.load += torch.bincount(chosen.flatten(), minlength=3)
        return out, (weights * chosen).mean()


@ingredient()
class dense_experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ParameterList([nn.Parameter(rand(4, 4, seed=number)) for number in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).topk(2, -1)
        full = torch.zeros(x.shape[0], 3, dtype=weights.dtype).scatter(1, chosen, weights.softmax(-1))
        return torch.einsum("bo,bod->bd", full, torch.stack([x @ expert for expert in self.experts], 1))


@ingredient()
class hard_routing(nn.Module):
    """Each row goes one way or the other: Python decides on data."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.routed = {"left": 0, "right": 0}

    def forward(self, x: Tensor) -> Tensor:
        out = []
        for row in x:
            side = "left" if row.sum() > 0 else "right"
            self.routed[side] += 1
            out.append(getattr(self, side)(row))
        return torch.stack(out) if out else x


# -- memories --------------------------------------------------------------------------------------------------------


@ingredient(floats(2, 4))
class key_value_cache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(8, 16, 4), persistent=False)
        self.register_buffer("values", torch.zeros(8, 16, 4), persistent=False)
        self.at = 0

    def forward(self, x: Tensor) -> Tensor:
        rows, length = x.shape[:2]
        if self.at + length > self.keys.shape[1]:
            self.at = 0
        with torch.no_grad():
            self.keys[:rows, self.at : self.at + length] = self.key(x)
            self.values[:rows, self.at : self.at + length].copy_(self.value(x))
        self.at += length
        keys, values = self.keys[:rows, : self.at].clone(), self.values[:rows, : self.at].clone()
        return F.scaled_dot_product_attention(self.query(x), keys, values)


@ingredient(floats(2, 4))
class growing_cache(nn.Module):
    """A list of what was seen, that is put together in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.past, self.window = nn.Linear(4, 4), [], collections.deque(maxlen=3)

    def forward(self, x: Tensor) -> Any:
        k = self.key(x)
        self.past.append(k.detach().sum(0))
        self.window.append(k.detach().mean())
        return x @ torch.stack(self.past).sum(0).mT, torch.stack(list(self.window)).sum()


@ingredient()
class codebook(nn.Module):
    """Vector quantisation: moving averages of what falls to each code, and a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("codes", rand(5, 4, seed=1))
        self.register_buffer("counts", torch.ones(5))

    def forward(self, x: Tensor) -> Any:
        z = self.encode(x)
        chosen = torch.cdist(z, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(chosen, 5).to(z.dtype)
                self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.codes.lerp_((hot.mT @ z) / self.counts[:, None], 0.1)
        q = self.codes[chosen]
        return self.decode(z + (q - z).detach()), F.mse_loss(z, q.detach()), chosen


@ingredient()
class contrast(nn.Module):
    """A student, a teacher that follows it, and a queue of what the teacher said."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.at = nn.Linear(4, 4), 0
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.register_buffer("queue", F.normalize(rand(4, 8, seed=2), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        q = F.normalize(self.student(x), dim=1)
        with torch.no_grad():
            for kept, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                kept.data = kept.data * 0.9 + new.data * 0.1
            k = F.normalize(self.teacher(x), dim=1)
        out = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach()], 1)
        with torch.no_grad():
            where = (torch.arange(x.shape[0]) + self.pointer) % 8
            self.queue[:, where] = k.mT.to(self.queue.dtype)
            self.pointer[0] = (self.pointer[0] + x.shape[0]) % 8
        return out


# -- functions with gradients of their own -----------------------------------------------------------------------------


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return -ctx.scale * gradient, None


@ingredient()
class reversal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.task, self.domain, self.scale = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2), 0.5

    def forward(self, x: Tensor) -> Any:
        h = self.body(x).relu()
        return {"task": self.task(h), "domain": self.domain(Reverse.apply(h, self.scale))}


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor) -> Any:
        ctx.save_for_backward(x, other)
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        ctx.set_materialize_grads(False)
        return x * other.sigmoid(), mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: Any) -> Any:
        x, other = ctx.saved_tensors
        if gradient is None:
            return None, None
        gate = other.sigmoid()
        return gradient * gate, gradient * x * gate * (1 - gate)


@ingredient()
class own_function(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return Swish.apply(self.left(x), self.right(x))


@ingredient()
class checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.BatchNorm1d(4))
        self.right = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        left = checkpoint(self.left, x, use_reentrant=False)
        return left + checkpoint_sequential(self.right, 2, x, use_reentrant=False)


@ingredient()
class straight_through(nn.Module):
    """Gumbel noise, and rounding that a gradient passes."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        hard = F.gumbel_softmax(self.left(x), tau=0.7, hard=True)
        y = self.right(x)
        return hard * (y + (y.round() - y).detach())
