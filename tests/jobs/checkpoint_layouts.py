"""Runs of training one after the other, each with its own layout of ranks; each may begin and end with a checkpoint.

torchrun --nproc-per-node 2 checkpoint_layouts.py runs.json losses.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jobs.checkpoint_net import batch, build, freeze, loss_of, momentum_of, optimizer_of
from torch.optim.swa_utils import AveragedModel

from partitioner.distributed import latest, load, parallelize, save
from partitioner.errors import PartitionerError


def run(asked: dict[str, Any]) -> list[float]:
    """One run: from step ``begin`` or the checkpoint ``load`` to step ``end``, saved in ``folder`` at the steps ``save``."""
    spec = {"distributed": {"mesh": asked["mesh"], "microbatches": asked.get("microbatches", 4), "timeout": 60}}
    spec["distributed"]["wrap"] = asked.get("wrap", "ddp")
    rows = 16 // asked["mesh"].get("data", 1)
    whole = build(asked.get("dropout", 0.0))
    model, step = parallelize(freeze(whole) if asked.get("frozen") else whole, batch(0)[0][:rows], spec, loss_of)
    make = momentum_of if asked.get("momentum") else optimizer_of
    optimizer = make(model, asked.get("rate", 1e-2))
    begin = 0
    if "load" in asked:
        begin, extra = load(asked["load"], model, optimizer)
        begin = asked.get("begin", begin)
        assert extra == asked.get("extra"), extra
    average = AveragedModel(model)
    if "average" in asked and latest(asked["average"]):
        load(Path(asked["average"]) / Path(asked["load"]).name, average)
    mine = slice(step.ranks.data * rows, (step.ranks.data + 1) * rows)
    losses, saving = [], None
    for number in range(begin, asked["end"] + 1):
        if number in asked.get("save", ()):
            saving = save(asked["folder"], model, optimizer, number, extra={"best": 0.5}, asynchronous=True)
            if "average" in asked:
                save(asked["average"], average, step=number)
        if number < asked["end"]:
            ids, target = batch(number)
            losses.append(step((ids[mine], target[mine])).item())
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
    if saving is not None:
        assert saving.result().name == f"step-{asked['save'][-1]}" and saving.done()
    return losses


def main(runs: str, results: str) -> None:
    found: dict[str, Any] = {}
    for asked in json.loads(Path(runs).read_text()):
        try:
            found[asked["name"]] = run(asked)
        except (PartitionerError, SystemExit) as error:
            if not asked.get("fails"):
                raise
            found[asked["name"]] = f"{type(error).__name__}: {error}"
    if dist.get_rank() == 0:
        Path(results).write_text(json.dumps(found))
    dist.barrier()  # lets go of what the last step sent; torch may otherwise wait for ever in the next line
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
