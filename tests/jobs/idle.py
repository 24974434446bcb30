"""torchrun idle.py OUT: two ranks, to one of which no parameter falls, train, scale, clip, save, and go on from what was saved.

Each rank writes OUT/rank<N>.json: by mesh what it holds, the losses of three steps, and those of the two after a load.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jobs.nets import TRAININGS

from partitioner.distributed import GradScaler, load, parallelize, save

MESHES = {"pipeline": {"pipeline": 2}, "branch": {"branch": 2}}
SAVED, STEPS = 3, 5


def trained(mesh: dict[str, int], begin: int, end: int, start: Path | None = None) -> tuple[list[float], Any, Any]:
    training = TRAININGS["tailed"]
    batches = training.batches()
    spec = {"distributed": {"mesh": mesh, "microbatches": 2, "timeout": 60}}
    model, step = parallelize(training.model(), batches[0][0], spec, training.loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = GradScaler(step, init_scale=2.0**10)
    if start is not None:
        load(start, model, optimizer)
    losses = []
    for batch in batches[begin:end]:
        losses.append(step(batch).item())
        scaler.unscale_(optimizer)
        step.clip_grad_norm_(0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses, model, optimizer


def main(folder: Path) -> None:
    found: dict[str, Any] = {}
    for number, (name, mesh) in enumerate(MESHES.items()):
        other = [*MESHES.values()][1 - number]
        losses, model, optimizer = trained(mesh, 0, SAVED)
        saved = save(folder / name, model, optimizer, SAVED)
        more, _, _ = trained(other, SAVED, STEPS, saved)
        given = [each.numel() for each in model.parameters()]
        found[name] = {"losses": losses + more, "keys": [*model.state_dict()], "given": given}
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
