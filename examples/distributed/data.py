"""Data parallelism: each rank has the whole model and its own rows; gradients are averaged.

    torchrun --nproc-per-node 2 examples/distributed/data.py

Give each rank its own batches; the loss that a step gives is the mean over all ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner.distributed import parallelize

SPEC = {"distributed": {"mesh": {"data": 2}, "wrap": "ddp"}}


def build() -> nn.Module:
    torch.manual_seed(0)  # every rank builds the same model
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1), nn.Flatten(0))


def batch(step: int, place: int) -> tuple[Tensor, Tensor]:
    """The rows of one rank: what is to be learned is a weighted sum, squashed."""
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(2 * step + place))
    return x, (x @ torch.linspace(-1, 1, 16)).tanh()


def main(steps: int = 50) -> None:
    example, _ = batch(0, 0)
    model, step = parallelize(build(), example, SPEC, nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(steps):
        loss = step(batch(number, step.ranks.data))
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % 10 == 9:
            print(f"step {number + 1:3}   loss {loss.item():.4f}")
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
