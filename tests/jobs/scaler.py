"""Ten steps of two ranks with and without a scaler; in one of them a gradient of one stage overflows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner import distributed

X, TARGET = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.zeros(8, 4)
SPEC = {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 2, "timeout": 60}}


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)), nn.Linear(16, 4))


def trained(scaled: bool, overflow: int = -1, fused: bool = False) -> tuple[dict[str, Tensor], list[float], int]:
    """Parameters of this rank after ten steps, the losses, and how many steps were skipped."""
    part, step = distributed.parallelize(made(), X, SPEC, nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1, fused=fused)
    scaler = distributed.GradScaler(step, init_scale=2.0**10, growth_interval=1000) if scaled else None
    losses, skipped = [], 0
    for number in range(10):
        losses.append(step((X, TARGET)).item())
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
    return {
        "apart": max(float((plain[key] - same[key]).abs().max()) for key in plain),
        "losses": max(abs(one - other) for one, other in zip(plain_losses, same_losses, strict=True)),
        "skipped": [none, skipped, by_itself],
    }
