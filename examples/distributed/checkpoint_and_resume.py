"""Training that survives the loss of ranks: it saves now and then, and goes on from the last checkpoint that is whole.

    torchrun --nproc-per-node 2 examples/distributed/checkpoint_and_resume.py run 40
    torchrun --nproc-per-node 2 examples/distributed/checkpoint_and_resume.py run 60      goes on at step 40

torchrun starts ranks again by itself with `--max-restarts 3`; with torch 2.13 set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 too, or
new ranks look for the dead ones. The checkpoint fits any other layout, and the plain model in one process.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from pipeline import SPEC, batch, build, loss_of

from partitioner.distributed import latest, load, parallelize, save


def main(folder: str, steps: int) -> None:
    example, _ = batch(0)
    model, step = parallelize(build(), example, SPEC, loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    begin, where = 0, latest(folder)
    if where is not None:
        begin, extra = load(where, model, optimizer)
        scheduler.load_state_dict(extra)
    for number in range(begin, steps):
        loss = step(batch(number))
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if dist.get_rank() == 0 and number % 10 == 9:
            print(f"step {number + 1:3}   loss {loss.item():.6f}")
        if number % 20 == 19:
            save(folder, model, optimizer, number + 1, extra=scheduler.state_dict())
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
