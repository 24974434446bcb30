"""torchrun planned.py OUT: does what the plan files in OUT say, over the two ranks of this job, and refuses what does not fit.

cut, shared    trains by OUT/cut.yaml and OUT/shared.yaml: losses, the stage of each op, the form of each tensor
branches       trains by OUT/branches.yaml: losses, and the keys of the parameters of this rank
forward        inference by OUT/forward.yaml: how far the output is from eager's
refused        what is raised for files that differ from rank to rank, and for another model

Each rank writes OUT/rank<N>.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jobs.nets import TRAININGS, optimizer_of
from torch import nn

import partitioner.distributed.ranks
from partitioner.distributed import inference, parallelize

PIPELINE = {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4, "timeout": 60}}
TENSOR = {"distributed": {"mesh": {"tensor": 2}, "microbatches": 4, "timeout": 60}}
BRANCH = {"distributed": {"mesh": {"branch": 2}, "microbatches": 4, "timeout": 60}}
STEPS = 2


def trained(spec: dict[str, Any], plan: Path, net: str = "tied") -> dict[str, Any]:
    training = TRAININGS[net]
    batches = training.batches()[:STEPS]
    model, step = parallelize(training.model(), batches[0][0], spec, training.loss, plan=plan)
    optimizer, losses = optimizer_of(model), []
    for batch in batches:
        losses.append(step(batch).item())
        optimizer.step()
        optimizer.zero_grad()
    forms = {} if model.shards is None else {key: str(form) for key, form in model.shards.forms.items()}
    keys = [key for key, _ in model.named_parameters()]
    return {"losses": losses, "stage": dict(model.cut.stage), "forms": forms, "keys": keys}


def apart(plan: Path) -> float:
    training = TRAININGS["tied"]
    model, (ids, _) = training.model(), training.batches()[0]
    output = inference(model, ids, PIPELINE, plan=plan)[1](ids)
    return 0.0 if output is None else float((output["logits"] - model(ids)["logits"]).abs().max())


def raised(case: Callable[[], Any]) -> tuple[str, str]:
    try:
        case()
    except (Exception, SystemExit) as error:
        return type(error).__name__, str(error)
    return "", ""


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    other = folder / ("cut.yaml" if dist.get_rank() == 0 else "even.yaml")
    found = {
        "cut": trained(PIPELINE, folder / "cut.yaml"),
        "shared": trained(TENSOR, folder / "shared.yaml"),
        "branches": trained(BRANCH, folder / "branches.yaml", "towers"),
        "forward": apart(folder / "forward.yaml"),
        "other file": raised(lambda: trained(PIPELINE, other)),
        "other model": raised(
            lambda: parallelize(nn.Linear(4, 4), torch.ones(4, 4), PIPELINE, torch.sum, plan=folder / "cut.yaml")
        ),
    }
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    partitioner.distributed.ranks.LEAD = 0.0  # this job does not end at the first error
    main(Path(sys.argv[1]))
