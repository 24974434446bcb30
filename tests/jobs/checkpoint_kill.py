"""Saves again and again, of a model in two stages whose every number is the step; somebody kills it before the last save.

torchrun --nproc-per-node 2 checkpoint_kill.py run pids asynchronous       or: waiting
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from jobs.checkpoint_net import batch, build, loss_of, optimizer_of

from partitioner.distributed import latest, load, parallelize, save

SAVES = 2_000
"""More than any test waits for, and no more than a disk has room for, should nobody come."""


def main(run: str, pids: str, how: str) -> None:
    spec = {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4, "timeout": 60}}
    model, step = parallelize(build(width=256), batch(0)[0], spec, loss_of)
    optimizer = optimizer_of(model)
    step(batch(0))
    optimizer.step()
    where = latest(run)
    begun = load(where, model, optimizer).step if where else 0
    (Path(pids) / f"{dist.get_rank()}.writing").write_text(str(os.getpid()))
    dist.barrier()
    (Path(pids) / f"{dist.get_rank()}.writing").rename(Path(pids) / str(dist.get_rank()))
    for number in range(begun + 1, begun + SAVES + 1):
        with torch.no_grad():
            for parameter, state in optimizer.state.items():
                for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"], state["step"]):
                    tensor.fill_(number)
        if how == "asynchronous":
            save(run, model, optimizer, number, asynchronous=True)
        else:
            save(run, model, optimizer, number)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
