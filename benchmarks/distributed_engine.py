"""What does a step of `parallelize` take beside the same step written by hand with torch's own engine?

    python benchmarks/distributed_engine.py
    python benchmarks/distributed_engine.py --only pipeline --rounds 41

pipeline   layers cut into two stages by hand for torch.distributed.pipelining, 1F1B
data       two copies under DistributedDataParallel
hybrid     both, on four ranks: each stage under DistributedDataParallel
tensor     transformer blocks divided by hand with torch's `parallelize_module`

Ranks are processes on gloo with one thread each. A few steps of ours and as many by hand take turns, once the first steps are
over: ours looks at losses and compares ranks in ten of the first 257. *Wall* is the time of the first rank. *CPU* is that of
all ranks' processors, of which waits and what else the machine does are no part. A ratio under 1 is in our favour; the aim
is at most 1.03.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from _common import job, print_machine, table, written
from torch import Tensor, nn

FIRST, STEPS = 40, 5
"""Of each way before any is timed, and of one in its turn."""

Step = Callable[[], Tensor]

ROWS: dict[str, tuple[int, tuple[tuple[int, ...], ...]]] = {
    "pipeline": (2, ((16, 256, 64, 4), (8, 1024, 64, 4), (16, 128, 16, 4))),
    "data": (2, ((16, 256, 64, 1), (8, 1024, 64, 1), (16, 128, 16, 1))),
    "hybrid": (4, ((16, 256, 64, 4), (8, 1024, 64, 4))),
    "tensor": (2, ((4, 128, 8, 32), (4, 256, 8, 64), (4, 512, 8, 64))),
}
"""How many ranks, and by row how many layers of what width, how many rows for each copy, and how many microbatches, or, of the
tensor axis, how long a row is."""


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.job:
        run(*json.loads(options.job))
        return
    print_machine()
    rows = []
    for name, (ranks, cases) in ROWS.items():
        for case in cases if options.only in (None, name) else ():
            turns = job(__file__, ranks, name, case, options.rounds)
            rows.append([name, ranks, " x ".join(map(str, case[:2])), *case[2:], *_figures(turns)])
    heads = ("axes", "ranks", "layers", "rows", "microbatches, length", "by hand ms", "ours ms", "wall, ours / by hand", "CPU")
    print(table(heads, rows), "\n")


def _figures(turns: list[list[list[float]]]) -> list[str]:
    """Medians of both, and of their ratio by turn: of wall time with its quartiles, and of processor time."""
    wall, cpu = ([(ours[place], hand[place]) for ours, hand in turns] for place in (0, 1))
    ratios = [ours / hand for ours, hand in wall]
    low, middle, high = statistics.quantiles(ratios, n=4)
    hand, ours = (statistics.median(pair[place] for pair in wall) for place in (1, 0))
    spent = statistics.median(one / other for one, other in cpu)
    return [f"{1e3 * hand:.2f}", f"{1e3 * ours:.2f}", f"{middle:.2f}x ({low:.2f} to {high:.2f})", f"{spent:.2f}x"]


def run(name: str, case: Sequence[int], rounds: int, out: str) -> None:
    """One rank of a job: both ways in turns."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours, by_hand = JOBS[name](*case)
    first = [ours().detach(), by_hand().detach()]
    assert torch.allclose(*first, rtol=1e-4), f"they compute different things: {first}"
    for step in (ours, by_hand):
        for _ in range(FIRST):
            step()
    turns = [[_timed(ours), _timed(by_hand)] for _ in range(rounds)]
    written(out, turns)


def _timed(step: Step) -> tuple[float, float]:
    """Seconds of a step, over a few of them that all ranks begin together, on this rank and on all ranks' processors."""
    dist.barrier()
    began, spent = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        step()
    wall, cpu = time.perf_counter() - began, torch.tensor(time.process_time() - spent)
    dist.all_reduce(cpu)
    return wall / STEPS, cpu.item() / STEPS


# The ways -------------------------------------------------------------------------------------------------------------


def _layers(layers: int, width: int, rows: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Layers, and a batch that is the same on all ranks, so that a step without an optimizer gives the same loss each time."""
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))
    return blocks, torch.randn(rows, width), torch.randn(rows, width)


def _ours(model: nn.Module, x: Tensor, target: Tensor, **asked: Any) -> tuple[Step, Any]:
    from partitioner.distributed import parallelize

    _, step = parallelize(copy.deepcopy(model), x, {"distributed": asked}, nn.functional.mse_loss)
    return lambda: step((x, target)), step.ranks.mesh


def _staged(blocks: nn.Sequential, mesh: Any, count: int, x: Tensor, target: Tensor) -> Step:
    """Half of the layers on each of two stages, copies of them in step with each other if there are several."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    group, half, copies = mesh.get_group("pipeline"), len(blocks) // 2, mesh["data"].size()
    rank = dist.get_group_rank(group, dist.get_rank())
    part: nn.Module = blocks[rank * half : (rank + 1) * half]
    if copies > 1:
        part = nn.parallel.DistributedDataParallel(part, process_group=mesh.get_group("data"))
    schedule = Schedule1F1B(
        PipelineStage(part, rank, 2, torch.device("cpu"), group=group), count, loss_fn=nn.functional.mse_loss
    )

    def step() -> Tensor:
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x, return_outputs=False)
        else:
            schedule.step(target=target, losses=losses, return_outputs=False)
        mean = torch.stack([each.detach() for each in losses]).mean() if losses else torch.zeros(())
        dist.all_reduce(mean)
        return mean / copies

    return step


def pipeline(layers: int, width: int, rows: int, count: int, data: int = 1) -> tuple[Step, Step]:
    blocks, x, target = _layers(layers, width, rows)
    asked = {"mesh": {"data": data, "pipeline": 2}, "schedule": "1f1b", "microbatches": count}
    ours, mesh = _ours(blocks, x, target, **asked)
    return ours, _staged(blocks, mesh, count, x, target)


def data(layers: int, width: int, rows: int, _count: int) -> tuple[Step, Step]:
    blocks, x, target = _layers(layers, width, rows)
    ours, mesh = _ours(blocks, x, target, mesh={"data": 2})
    model = nn.parallel.DistributedDataParallel(blocks, process_group=mesh.get_group("data"))

    def step() -> Tensor:
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        return mean / 2

    return ours, step


class Attention(nn.Module):
    """A block of a transformer, written so that torch's `parallelize_module` can divide it: no number of heads in a view."""

    def __init__(self, width: int, head: int = 32) -> None:
        super().__init__()
        self.head = head
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        rows, length, _ = x.shape
        normed = self.before(x)
        heads = [each(normed).view(rows, length, -1, self.head).transpose(1, 2) for each in (self.q, self.k, self.v)]
        found = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(rows, length, -1))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


def tensor(layers: int, width: int, rows: int, length: int) -> tuple[Step, Step]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    blocks = nn.Sequential(*(Attention(width) for _ in range(layers)))
    x, target = (torch.randn(rows, length, width) for _ in range(2))
    ours, mesh = _ours(blocks, x, target, mesh={"tensor": 2})
    plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")} | {name: RowwiseParallel() for name in ("out", "down")}
    for block in blocks:
        parallelize_module(block, mesh["tensor"], plan)

    def step() -> Tensor:
        loss = nn.functional.mse_loss(blocks(x), target)
        loss.backward()
        return loss.detach()

    return ours, step


JOBS: dict[str, Callable[..., tuple[Step, Step]]] = {
    "pipeline": pipeline,
    "data": data,
    "hybrid": lambda *case: pipeline(*case, data=2),
    "tensor": tensor,
}
"""Ours and by hand, by what the ranks divide."""


if __name__ == "__main__":
    main()
