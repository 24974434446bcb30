"""Ten steps of two ranks with and without a scaler; in one of them a gradient of one stage overflows."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import distributed

X, TARGET = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.zeros(8, 4)
SHARDED = {"mesh": {"data": 2}, "wrap": "fsdp2"}


class Scaled(nn.Linear):
    """With a learnt number, which is whole where matrices are sharded."""

    def __init__(self) -> None:
        super().__init__(16, 16)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Scaled() for _ in range(5)), nn.Linear(16, 4))


def trained(scaled: bool, overflow: int = -1, fused: bool = False, **more: Any) -> tuple[dict[str, Tensor], list[float], int]:
    """Parameters of this rank after ten steps, the losses, and how many steps were skipped."""
    spec = {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 2, "timeout": 60} | more}
    x, target = (each.to(torch.get_default_dtype()) for each in (X, TARGET))
    part, step = distributed.parallelize(made(), x, spec, nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1, fused=fused)
    scaler = distributed.GradScaler(step, init_scale=2.0**10, growth_interval=1000) if scaled else None
    losses, skipped = [], 0
    for number in range(10):
        losses.append(step((x, target)).item())
        if number == overflow and dist.get_rank() == 0:
            next(iter(part.parameters())).grad.fill_(float("inf"))
        if scaler is None:
            optimizer.step()
        else:
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < before
        optimizer.zero_grad()
    return {key: each.detach().clone() for key, each in part.named_parameters()}, losses, skipped


def answer() -> dict[str, object]:
    """How far the steps with a scaler are from those without one, and how many were skipped."""
    plain, plain_losses, _ = trained(False)
    same, same_losses, none = trained(True)
    _, _, skipped = trained(True, overflow=4)
    _, _, by_itself = trained(True, overflow=4, fused=True)
    torch.set_default_dtype(torch.float64)
    sharded = [trained(scaled, **SHARDED)[1] for scaled in (False, True)]
    _, _, by_a_shard = trained(True, overflow=4, **SHARDED)
    torch.set_default_dtype(torch.float32)
    return {
        "sharded": sharded,
        "apart": max(float((plain[key] - same[key]).abs().max()) for key in plain),
        "losses": max(abs(one - other) for one, other in zip(plain_losses, same_losses, strict=True)),
        "skipped": [none, skipped, by_itself, by_a_shard],
    }
