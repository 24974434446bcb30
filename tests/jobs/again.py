"""torchrun again.py OUT: two ranks make parts of models again and again, as for folds, and one of them drops them later.

Each rank writes OUT/rank<N>.json: how many files are open after each part, and the losses of the first part, which is kept.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from partitioner.distributed import latest, load, parallelize, save

MESHES: tuple[dict[str, Any], ...] = (
    {"mesh": {"pipeline": 2}, "microbatches": 2},
    {"mesh": {"data": 2}, "wrap": "ddp"},
    {"mesh": {"tensor": 2}},
    {"mesh": {"branch": 2}},
)
TIMES = 5


class Tied(nn.Module):
    """The first layer and the last have one weight: with two stages a tie, which has a process group of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(x).tanh()).tanh())


def made(asked: dict[str, Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return parallelize(Tied(), torch.zeros(4, 4), {"distributed": {**asked, "timeout": 60}}, nn.functional.mse_loss)


def stepped(step: Any) -> float:
    return float(step((torch.ones(4, 4), torch.zeros(4, 4))).item())


def main(folder: Path) -> None:
    kept = made(MESHES[0])
    losses, files, late = [stepped(kept[1])], [], None
    for asked in MESHES * TIMES:
        part, step = made(asked)
        stepped(step)
        if dist.get_rank() == 1:  # it drops what the other has dropped before
            late = part, step
        save(folder, part, step=len(files) + 1)
        files.append(len(os.listdir("/proc/self/fd")))
    del late
    losses.append(stepped(kept[1]))
    load(latest(folder), kept[0])
    losses.append(stepped(kept[1]))
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps({"files": files, "losses": losses}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
