"""Both at once: two copies of a pipeline of two stages, with parameters and optimizer state sharded over the copies.

    torchrun --nproc-per-node 4 examples/distributed/hybrid.py

The ranks of one copy get the same batch, and each copy its own.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from pipeline import batch, build, loss_of

from partitioner.distributed import parallelize

SPEC = {"distributed": {"mesh": {"data": 2, "pipeline": 2}, "wrap": "fsdp2", "microbatches": 2}}


def main(steps: int = 30) -> None:
    example, _ = batch(0)
    model, step = parallelize(build(), example, SPEC, loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    here = sum(parameter.to_local().numel() for parameter in model.parameters())
    whole = sum(parameter.numel() for parameter in build().parameters())
    if dist.get_rank() == 0:
        print(f"rank 0 holds {here} of {whole} numbers")
    for number in range(steps):
        loss = step(batch(2 * number + step.ranks.data))  # each copy has its own rows
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % 10 == 9:
            print(f"step {number + 1:3}   loss {loss.item():.4f}")
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
