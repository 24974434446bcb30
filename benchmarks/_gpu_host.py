"""A model of which part is for the host: does the GPU's part run meanwhile?

The tables lie in the host's memory, the layers on the GPU, and the two meet at the end. One who writes it by hand calls the
host's part first or last: first, the GPU waits for it; last, the GPU runs meanwhile, for its kernels are only issued.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import table
from _gpu_models import Model
from _gpu_ways import difference, quartiles
from torch import Tensor, nn

from partitioner import partition

PINS = [{"match": "tables*", "device": "cpu"}, {"match": "mixed*", "device": "cpu"}]


def host_and_gpu(entry: Model, rounds: int, batch: int = 256) -> list[str]:
    """Tables of wall-clock times, as Markdown."""
    model, (x, indices) = entry.made("cpu", small=False), entry.call(batch, "cpu", small=False)
    with torch.no_grad():
        wanted = model(x, indices)
        try:
            parallel = partition(
                copy.deepcopy(model), ["cuda:0", "cpu"], example_inputs=(x, indices), pins=PINS, profile="auto", check=False
            )
            by_hand = copy.deepcopy(model)
            by_hand.body.cuda(), by_hand.head.cuda()
            given = x.cuda()
            ways = {
                "by hand, host first": lambda: _by_hand(by_hand, given, indices, host_first=True),
                "by hand, host last": lambda: _by_hand(by_hand, given, indices, host_first=False),
                "ours": lambda: parallel(given, indices),
            }
            for name, way in ways.items():
                gap = difference(wanted, way())
                assert gap < 2e-2, f"{name} differs from eager by {gap:.0e}"
            return _timed(ways, rounds)
        except Exception as error:  # the figures that there are go out in any case
            return [f"Host and GPU: {type(error).__name__}: {error}"]


def _by_hand(model: nn.Module, x: Tensor, indices: Tensor, host_first: bool) -> Tensor:
    if host_first:
        found = model.looked_up(indices).cuda()
        return model.head(torch.cat([model.body(x), found], 1))
    made = model.body(x)
    return model.head(torch.cat([made, model.looked_up(indices).cuda()], 1))


def _timed(ways: dict[str, Callable[[], Any]], rounds: int) -> list[str]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else reversed(ways):
            ways[name]()
            torch.cuda.synchronize()
            start = time.perf_counter()
            ways[name]()
            torch.cuda.synchronize()
            found[name].append((time.perf_counter() - start) * 1e3)
    rows = []
    for name, values in found.items():
        low, median, high = quartiles(values)
        rows.append([name, f"{median:.3f} ({low:.3f} to {high:.3f})"])
    return ["Host and GPU: milliseconds of one call, wall clock", table(["way", "ms"], rows)]
