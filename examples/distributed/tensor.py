"""Tensor parallelism: two ranks share every layer of a small language model; how is derived from its graph.

    torchrun --nproc-per-node 2 examples/distributed/tensor.py

Layers are divided by columns or rows; what each rank has a part of is gathered or summed where an op needs the whole.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from pipeline import batch, build, loss_of

from partitioner.distributed import parallelize

SPEC = {"distributed": {"mesh": {"tensor": 2}}}


def main(steps: int = 30) -> None:
    example, _ = batch(0)
    model, step = parallelize(build(), example, SPEC, loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    here = sum(parameter.numel() for parameter in model.parameters())
    whole = sum(parameter.numel() for parameter in build().parameters())
    if dist.get_rank() == 0:
        print(f"rank 0 holds {here} of {whole} numbers")
        for key, form in model.shards.forms.items():
            print(f"  {key}  {form}")
    for number in range(steps):
        loss = step(batch(number))  # both ranks get the same rows
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and number % 10 == 9:
            print(f"step {number + 1:3}   loss {loss.item():.4f}")
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
