"""Branches on ranks: a model of two towers, one on each rank, trained together.

    torchrun --nproc-per-node 2 examples/distributed/branches.py

A rank holds the parameters of what it runs; what the other rank needs of it passes when it is there, and gradients come back.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner.distributed import parallelize

SPEC = {"distributed": {"mesh": {"branch": 2}}}


class TwoTowers(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        sizes = (16, width), (width, width), (width, 8)
        self.left, self.right = (
            nn.Sequential(*(nn.Sequential(nn.Linear(*size), nn.GELU()) for size in sizes)) for _ in range(2)
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.left(x) * self.right(y)).sum(1)


def batch(step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Do two vectors point to the same side?"""
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(32, 16, generator=generator), torch.randn(32, 16, generator=generator)
    return (x, y), ((x[:, 0] * y[:, 0]) > 0).float()


def main(steps: int = 60) -> None:
    torch.manual_seed(0)
    inputs, _ = batch(0)
    model, step = parallelize(TwoTowers(), inputs, SPEC, nn.functional.binary_cross_entropy_with_logits)
    print(f"rank {dist.get_rank()} holds {', '.join(sorted({key.split('.')[0] for key in model.state_dict()}))}", flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(steps):
        loss = step(batch(number))
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % 20 == 19:
            print(f"step {number + 1:3}   loss {loss.item():.4f}")
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
