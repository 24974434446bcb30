"""short.py FOLDER EVERY: what two ranks are asked that takes less than their start: weights of a model without memory, a
scaler, warnings, outputs of microbatches, targets that are ignored, of these each ``EVERY``-th case."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from jobs import ignored, outputs, scaler, warned, weights

import partitioner.distributed.ranks

FOLDER = Path(sys.argv[1])
torch.set_num_threads(1)
gathered: list[object] = [None, None]
dist.init_process_group("gloo")
partitioner.distributed.ranks.LEAD = 0.0  # this job does not end at the first error
found = {
    "weights": weights.answer(FOLDER, pipeline=2),
    "branches": weights.answer(FOLDER, branch=2),
    "scaler": scaler.answer(),
    "warned": warned.answer(),
    "outputs": outputs.answer(),
    "ignored": ignored.answer(int(sys.argv[2])),
}
dist.all_gather_object(gathered, found)
if dist.get_rank() == 0:
    (FOLDER / "out.json").write_text(json.dumps(gathered))
dist.barrier()
dist.destroy_process_group()
