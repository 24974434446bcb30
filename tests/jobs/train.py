"""torchrun train.py OUT: trains what the cases in OUT/cases.json name, one after the other, over the ranks of this job.

Each rank writes OUT/rank<N>.json: for each case the losses, the norms of gradients, and the parameters that it holds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jobs.nets import BY_ITSELF, ROWS, TRAININGS, optimizer_of, rows_of

from partitioner.distributed import parallelize
from partitioner.distributed.tensor.collectives import gathered
from partitioner.distributed.tensor.shards import Shards


def train(case: dict[str, Any]) -> dict[str, Any]:
    training = TRAININGS[case["net"]]
    local = ROWS // case["distributed"]["mesh"].get("data", 1)
    batches = training.batches()
    first = batches[0] if case["net"] in BY_ITSELF else batches[0][0]
    spec = {"distributed": {"timeout": 60, **case["distributed"]}}
    model, step = parallelize(training.model(), rows_of(first, 0, local), spec, training.loss, count_fn=training.count)
    optimizer = optimizer_of(model)
    start = step.ranks.data * local
    losses, norms = [], []
    for number, batch in enumerate(batches, 1):
        losses.append(step(rows_of(batch, start, start + local)).item())
        if number % case["every"]:
            continue
        if case["clip"]:
            norms.append(step.clip_grad_norm_(case["clip"], case["order"], foreach=case["order"] == 2.0).item())
        optimizer.step()
        optimizer.zero_grad()
    parameters = {key: whole_of(model.shards, key, each.detach()) for key, each in model.named_parameters()}
    return {
        "losses": losses,
        "norms": norms,
        "stages": model.cut.count,
        "parameters": {key: each.tolist() for key, each in parameters.items()},
    }


def whole_of(shards: Shards | None, key: str, held: torch.Tensor) -> torch.Tensor:
    """All of a parameter of which this rank has a part."""
    full = held.full_tensor() if hasattr(held, "full_tensor") else held
    if shards is None or key not in shards.forms:
        return full
    form = shards.forms[key]
    return gathered(full, form.dim, form.blocks, shards.ranks, shards.place.group)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    found = {name: train(case) for name, case in json.loads((folder / "cases.json").read_text()).items()}
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()
