"""Trains ten steps in two stages, saving after every second; at some steps a rank kills itself, each time once.

torchrun --nproc-per-node 2 --max-restarts 3 checkpoint_restart.py folder 5:1 8:0        at step 5 rank 1, at step 8 rank 0
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from jobs.checkpoint_net import batch, build, loss_of, optimizer_of

from partitioner.distributed import latest, load, parallelize, save


def perhaps_die(folder: Path, number: int, deaths: set[tuple[int, int]]) -> None:
    died = folder / f"died-{number}"
    if (number, dist.get_rank()) in deaths and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, deaths: set[tuple[int, int]]) -> None:
    spec = {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4, "timeout": 60}}
    model, step = parallelize(build(dropout=0.1), batch(0)[0], spec, loss_of)
    optimizer = optimizer_of(model)
    where = latest(folder)
    begin, losses = load(where, model, optimizer) if where else (0, [])
    for number in range(begin, 10):
        perhaps_die(folder, number, deaths)
        losses.append(step(batch(number)).item())
        optimizer.step()
        optimizer.zero_grad()
        if number % 2:
            save(folder, model, optimizer, number + 1, extra=losses)
    if dist.get_rank() == 0:
        (folder / "losses.json").write_text(json.dumps({"began": begin, "losses": losses}))
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = (each.split(":") for each in sys.argv[2:])
    main(Path(sys.argv[1]), {(int(number), int(rank)) for number, rank in asked})
