"""How long do single ops take beside their roofline? One thread of a CPU, on the figures that are assumed of any machine.

    python benchmarks/op_costs.py
    python benchmarks/op_costs.py --quick
    python benchmarks/op_costs.py --ops sort,maxpool

What a machine is faster or slower than assumed shows in every row alike, so the spread is what counts: an op whose ratio is
far from the others' gets a lane more or less work than it should. The rows are what `partitioner/frontend/analysis/work.py`
has its figures from.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _common import print_machine, seconds, table
from torch import Tensor, nn
from torch.nn import functional as F

from partitioner import partition

Case = tuple[Callable[..., Any], tuple[Tensor, ...]]


class Calling(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    torch.set_num_threads(1)
    print_machine()
    rows = []
    for name, (function, args) in cases().items():
        if name in options.ops:
            predicted, measured = timed(function, args, 1 if options.quick else 5)
            rows.append((measured / predicted, name, predicted * 1e6, measured * 1e6))
    middle = statistics.median(row[0] for row in rows)
    shown = [[name, f"{before:.0f}", f"{after:.0f}", f"{ratio / middle:.2f}"] for ratio, name, before, after in sorted(rows)]
    print(table(["op", "predicted us", "measured us", "measured / predicted, beside the median"], shown))
    within = sum(0.5 < ratio / middle < 2 for ratio, *_ in rows)
    print(f"\n{within} of {len(rows)} within a factor of two of the median, which is {middle:.2f}")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one sample of each: shows that it runs, no more")
    parser.add_argument("--ops", type=lambda text: text.split(","), default=list(cases()), help="names of ops")
    return parser.parse_args(words)


def timed(function: Callable[..., Any], args: tuple[Tensor, ...], rounds: int) -> tuple[float, float]:
    """Seconds of a call: predicted, and the least of some rounds."""
    module = function.train("dropout" in str(function).lower()) if isinstance(function, nn.Module) else Calling(function)
    with torch.no_grad():
        costs = partition(module, ["cpu"], example_inputs=args, check=False, tune=False, policy="single").plan.costs
        repeat = max(1, int(0.02 / seconds(lambda: module(*args), 2)))
        measured = min(seconds(lambda: module(*args), repeat) for _ in range(rounds))
    return costs.time(costs.ops, costs.machine.devices[0]), measured


def cases() -> dict[str, Case]:
    """What is timed, by name: what a whole product or a whole row of memory takes, and what kernels take one by one."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    flat, image, matrix, tokens = some(1000, 1000), some(4, 64, 56, 56), some(200, 200), some(8, 32, 128)
    rows = torch.randint(0, 1000, (1000, 500), generator=generator)
    heads = some(2, 8, 64, 32)
    positive = matrix @ matrix.T + 200 * torch.eye(200)
    encoder = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return {
        "linear": (nn.Linear(512, 512), (some(64, 512),)),
        "bmm": (torch.bmm, (some(16, 64, 64), some(16, 64, 64))),
        "conv 3x3": (nn.Conv2d(64, 64, 3, padding=1), (some(4, 64, 28, 28),)),
        "conv 1x1": (nn.Conv2d(64, 256, 1), (some(4, 64, 28, 28),)),
        "attention": (F.scaled_dot_product_attention, (heads, heads, heads)),
        "encoder": (encoder.eval(), (tokens,)),
        "lstm": (nn.LSTM(128, 128, batch_first=True), (tokens,)),
        "gru": (nn.GRU(128, 128, batch_first=True), (tokens,)),
        "embedding": (nn.Embedding(10000, 256), (torch.randint(0, 10000, (8, 128), generator=generator),)),
        "relu": (torch.relu, (flat,)),
        "gelu": (nn.GELU(), (flat,)),
        "softmax": (nn.Softmax(-1), (flat,)),
        "layer norm": (nn.LayerNorm(1000), (flat,)),
        "batch norm": (nn.BatchNorm2d(64), (image,)),
        "sum": (lambda x: x.sum(-1), (flat,)),
        "cat": (lambda x: torch.cat([x, x], 1), (flat,)),
        "gather": (lambda x, index: x.gather(1, index), (flat, rows)),
        "dropout": (nn.Dropout(0.5), (flat,)),
        "randn": (lambda x: x + torch.randn(1000, 1000), (flat,)),
        "var": (lambda x: x.var(-1), (flat,)),
        "argmax": (lambda x: x.argmax(-1), (flat,)),
        "topk": (lambda x: x.topk(10)[0], (flat,)),
        "median": (lambda x: x.median(-1)[0], (flat,)),
        "sort": (lambda x: x.sort(-1)[0], (some(100, 1000),)),
        "where": (lambda x: torch.where(x > 0, x, -x), (flat,)),
        "maxpool": (nn.MaxPool2d(3, 2, 1), (image,)),
        "avgpool": (nn.AvgPool2d(2), (image,)),
        "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (some(4, 32, 28, 28),)),
        "bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (some(4, 32, 28, 28),)),
        "grid sample": (lambda x, y: F.grid_sample(x, y, align_corners=False), (some(2, 16, 32, 32), some(2, 32, 32, 2))),
        "unfold": (lambda x: F.unfold(x, 3), (some(4, 16, 32, 32),)),
        "rfft": (lambda x: torch.fft.rfft(x).abs(), (some(64, 4096),)),
        "fft2": (lambda x: torch.fft.fft2(x).abs(), (some(4, 8, 64, 64),)),
        "svd": (torch.linalg.svdvals, (some(100, 100),)),
        "eigh": (lambda x: torch.linalg.eigh(x)[0], (positive,)),
        "inv": (torch.linalg.inv, (positive,)),
        "solve": (torch.linalg.solve, (positive, matrix)),
        "cholesky": (torch.linalg.cholesky, (positive,)),
    }


if __name__ == "__main__":
    main()
