"""Inference over ranks: a model in two stages, each shared by two ranks, that no rank holds as a whole.

    torchrun --nproc-per-node 4 examples/distributed/inference.py

The ranks of the last stage get the output, and the others get None.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from pipeline import batch, build

from partitioner.distributed import inference

SPEC = {"distributed": {"mesh": {"pipeline": 2, "tensor": 2}, "microbatches": 2}}


def main() -> None:
    ids, _ = batch(0)
    model = build().eval()
    part, forward = inference(model, ids, SPEC)
    output = forward(ids)
    if output is not None:
        with torch.no_grad():
            apart = (output - model(ids)).abs().max().item()
        held, whole = (sum(parameter.numel() for parameter in each.parameters()) for each in (part, model))
        print(f"rank {dist.get_rank()} holds {held} of {whole} numbers, its output is {apart:.0e} from the model's", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
