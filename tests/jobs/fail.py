"""fail.py HOW WHERE RANK SPEC FOLDER: a job of which one rank fails, as asked for, and writes when.

HOW is raise, kill, stop, hang, leave or none; WHERE is start, forward, backward, clip, or saving: while a checkpoint is written
beside a step; or alone: the rank saves a checkpoint, and no other does. In a step it is the third.
Started by torchrun, or as processes that know of each other from environment variables alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partitioner.distributed import parallelize, save

HOW, WHERE, RANK, SPEC, FOLDER = sys.argv[1:]
ARMED = False


def fail(where: str) -> None:
    """Fail, if this is the rank, the place and the time."""
    if not ARMED or where != WHERE or os.environ.get("RANK") != RANK:
        return
    print(f"failing at {time.time()}", flush=True)
    if HOW == "raise":
        raise ZeroDivisionError("a layer without weights")
    if HOW == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if HOW == "leave":
        sys.exit(0)
    if HOW == "hang":
        time.sleep(600)


@torch.library.custom_op("jobs::failing", mutates_args=())
def failing(value: Tensor) -> Tensor:
    fail("forward")
    return value.clone()


@failing.register_fake
def _(value: Tensor) -> Tensor:
    return torch.empty_like(value)


def failing_backward(_context: object, gradient: Tensor) -> Tensor:
    fail("backward")
    return gradient


failing.register_autograd(failing_backward)


class Layers(nn.Module):
    """Layers, each with an op that can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = failing(layer(x))
        return x


def main() -> None:
    global ARMED
    ARMED = WHERE == "start"
    spec = {"distributed": {"microbatches": 4, "timeout": 5.0, **json.loads(SPEC)}}
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    if ARMED:
        dist.init_process_group("gloo", timeout=timedelta(seconds=5))
        fail("start")
    model, step = parallelize(Layers(), x, spec, nn.functional.mse_loss)
    print("made", flush=True)
    for number in range(4):
        ARMED = number == 2
        if ARMED and WHERE == "saving":
            save(FOLDER, model, step=number, asynchronous=True)
            fail("saving")
        if ARMED and WHERE == "alone" and os.environ["RANK"] == RANK:
            save(FOLDER, model, step=number)
        step((x, x))
        fail("clip")
        step.clip_grad_norm_(1.0)
        model.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
