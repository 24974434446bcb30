"""What do planned stages, schedules and wiring give over ranks?

    python benchmarks/distributed.py
    python benchmarks/distributed.py --only bubble

balance   the longest stage over the mean, by measured forwards: planned stages beside stages with equally many ops
bubble    the part of a step in which ranks wait, with stages that sleep, beside (p - 1) / (v m + p - 1)
engine    a step of `parallelize` beside the same model cut by hand for torch.distributed.pipelining, in turns in one job
tensor    a step of `parallelize` on a tensor axis beside the same blocks divided by hand with torch's `parallelize_module`

Ranks are processes on gloo. Stages that sleep need no core, so that two cores are enough for four of them; `engine` and
`tensor` take two ranks of one thread each. A ratio under 1 is in our favour; the aim is at most 1.03.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import print_machine, table
from torch import Tensor, nn

ROUNDS, STEPS = 9, 5
SLEEP = 0.02
"""Seconds that a stage's forward sleeps for a microbatch; its backward sleeps twice as long."""

SCHEDULES = (("gpipe", 2, 1, 4), ("1f1b", 2, 1, 4), ("1f1b", 4, 1, 4), ("1f1b", 4, 1, 8), ("interleaved_1f1b", 2, 2, 4))


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("balance", "bubble", "engine", "tensor"))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.job:
        JOBS[options.job.partition(",")[0]](*options.job.split(",")[1:])
        return
    print_machine()
    for name, section in (("balance", balance), ("bubble", bubble), ("engine", engine), ("tensor", tensor)):
        if options.only in (None, name):
            print(f"{name}\n")
            section()


def job(ranks: int, *asked: object) -> Any:
    """What the first rank of a job of this file writes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        here = [str(Path(__file__).resolve()), "--job", ",".join(map(str, (*asked, out)))]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *here]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL, timeout=600)
        return json.loads(out.read_text())


# Balance --------------------------------------------------------------------------------------------------------------


def models() -> dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]]:
    """Models whose layers are uneven, each with a microbatch."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    import zoo

    vision = zoo.import_torchvision().models
    import transformers

    words = transformers.GPT2Config(vocab_size=20000, n_embd=128, n_layer=6, n_head=4, n_positions=64, use_cache=False)
    ids, image = torch.zeros(2, 64, dtype=torch.int64), torch.randn(2, 3, 96, 96)
    return {
        "resnet50": (lambda: vision.resnet50(num_classes=10), lambda: image),
        "vgg16": (lambda: vision.vgg16(num_classes=10), lambda: image),
        "gpt2, large vocabulary": (lambda: transformers.GPT2LMHeadModel(words), lambda: ids),
    }


def balance() -> None:
    """Print the table of stages."""
    from dataclasses import replace

    from partitioner.distributed.pipeline.cut import cut_into
    from partitioner.distributed.traced.example import example_of
    from partitioner.ir.machine import Device
    from partitioner.model.call import example_call

    rows = []
    torch.set_num_threads(1)
    for name, (make, inputs) in models().items():
        example = example_of(make().eval(), example_call(make(), inputs(), None))
        for count in (2, 4):
            planned = cut_into(example.traced, count, Device("cpu", "cpu"), profile="all")
            ops = [op.name for op in planned.graph.ops]
            even = replace(planned, stage={op: place * count // len(ops) for place, op in enumerate(ops)})
            by_plan, by_ops = measured(example, planned), measured(example, even)
            rows.append([name, count, len(ops), f"{planned.balance:.2f}", f"{by_plan:.2f}", f"{by_ops:.2f}"])
    print(table(("model", "stages", "ops", "planned, predicted", "planned, measured", "equal ops, measured"), rows), "\n")


def measured(example: Any, cut: Any) -> float:
    """The longest stage over the mean: medians of forwards."""
    from partitioner.distributed.pipeline.part import Stage, part_of
    from partitioner.frontend.check.interpret import interpret

    given = example.arguments(example.call.tensors)
    values, seconds = (torch.zeros(1, dtype=torch.int64),), []
    for number in range(cut.count):
        part = part_of(example.traced, cut, number)
        stage = Stage(part, lambda values, part=part: interpret(part.graph, values), part.traced.state, lambda _: given)
        known = {} if number == 0 else {"number": torch.zeros(1, dtype=torch.int64)}
        with torch.no_grad():
            samples = [timed(lambda: stage(*values, **known)) for _ in range(ROUNDS)]  # noqa: B023  called at once
            values = stage(*values, **known)
        seconds.append(statistics.median(samples))
    return max(seconds) * len(seconds) / sum(seconds)


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# Bubble ---------------------------------------------------------------------------------------------------------------


class Sleeper(nn.Module):
    """A layer that sleeps, forwards and twice as long backwards, and has one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.partitioner_bench.sleep(x * self.scale)


def declare_sleep() -> None:
    """An op that the tracer takes as it is."""

    @torch.library.custom_op("partitioner_bench::sleep", mutates_args=())
    def sleep(x: Tensor) -> Tensor:
        time.sleep(SLEEP)
        return x.clone()

    @sleep.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(2 * SLEEP)
        return gradient.clone()

    sleep.register_autograd(backward)


def bubble() -> None:
    """Print the table of schedules."""
    rows = []
    for schedule, ranks, each, count in SCHEDULES:
        step = job(ranks, "bubble", schedule, ranks, each, count)
        work = count * each * 3 * SLEEP
        formula = (ranks - 1) / (each * count + ranks - 1)
        rows.append([schedule, ranks, each, count, f"{1e3 * step:.0f}", f"{1 - work / step:.1%}", f"{formula:.1%}"])
    print(table(("schedule", "ranks", "stages each", "microbatches", "step ms", "bubble", "formula"), rows), "\n")


def bubble_job(schedule: str, ranks: str, each: str, count: str, out: str) -> None:
    """Median step of stages that sleep."""
    from partitioner.distributed import parallelize

    declare_sleep()
    model = nn.Sequential(*(Sleeper() for _ in range(int(ranks) * int(each))))
    asked = {"mesh": {"pipeline": int(ranks)}, "schedule": schedule, "stages_per_rank": int(each), "microbatches": int(count)}
    x = torch.ones(int(count), 8)
    _, step = parallelize(model, x, {"distributed": asked}, lambda output: output.mean())
    samples = [timed(lambda: step(x)) for _ in range(4)]
    written(out, statistics.median(samples[1:]))


# Engine ---------------------------------------------------------------------------------------------------------------


def engine() -> None:
    """Print the table of steps."""
    rows = []
    for width, layers, batch, count in ((256, 16, 64, 4), (1024, 8, 64, 4), (128, 16, 16, 4)):
        ratios, ours, hand = job(2, "engine", width, layers, batch, count)
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        rows.append([f"{layers} x {width}", batch, count, f"{1e3 * hand:.2f}", f"{1e3 * ours:.2f}", spread])
    print(table(("layers", "rows", "microbatches", "by hand ms", "ours ms", "ours / by hand"), rows), "\n")


def engine_job(width: str, layers: str, batch: str, count: str, out: str) -> None:
    """Steps of both in turns."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from partitioner.distributed import parallelize

    torch.set_num_threads(1)
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(int(width), int(width)), nn.GELU()) for _ in range(int(layers))]
    x, target = torch.randn(int(batch), int(width)), torch.randn(int(batch), int(width))
    asked = {"mesh": {"pipeline": 2}, "schedule": "1f1b", "microbatches": int(count)}
    _, step = parallelize(nn.Sequential(*blocks), x, {"distributed": asked}, nn.functional.mse_loss)
    rank, half = dist.get_rank(), int(layers) // 2
    part = nn.Sequential(*blocks[rank * half : (rank + 1) * half])
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, int(count), loss_fn=nn.functional.mse_loss)

    def by_hand() -> None:
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x, return_outputs=False)
        else:
            schedule.step(target=target, losses=losses, return_outputs=False)
        mean = torch.stack([each.detach() for each in losses]).mean() if losses else torch.zeros(())
        dist.broadcast(mean, 1)

    def ours() -> None:
        step((x, target))

    samples: list[tuple[float, float]] = []
    for _ in range(ROUNDS + 1):
        samples.append((round_of(ours), round_of(by_hand)))
    ratios = [one / other for one, other in samples[1:]]
    mine, other = zip(*samples[1:], strict=True)
    written(out, [ratios, statistics.median(mine), statistics.median(other)])


# Tensor ---------------------------------------------------------------------------------------------------------------


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


def tensor() -> None:
    """Print the table of steps."""
    rows = []
    for width, layers, batch, length in ((128, 4, 8, 32), (256, 4, 8, 64), (512, 4, 8, 64)):
        ratios, ours, hand = job(2, "tensor", width, layers, batch, length)
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        rows.append([f"{layers} x {width}", f"{batch} x {length}", f"{1e3 * hand:.2f}", f"{1e3 * ours:.2f}", spread])
    print(table(("blocks", "rows x length", "by hand ms", "ours ms", "ours / by hand"), rows), "\n")


def tensor_job(width: str, layers: str, batch: str, length: str, out: str) -> None:
    """Steps of both in turns."""
    import copy

    import torch.distributed as dist
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from partitioner.distributed import parallelize

    torch.set_num_threads(1)
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Attention(int(width)) for _ in range(int(layers))))
    hand = copy.deepcopy(blocks)
    x, target = (torch.randn(int(batch), int(length), int(width)) for _ in range(2))
    _, step = parallelize(blocks, x, {"distributed": {"mesh": {"tensor": 2}}}, nn.functional.mse_loss)
    columns, rows = ("q", "k", "v", "up"), ("out", "down")
    plan = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    for block in hand:
        parallelize_module(block, step.ranks.mesh["tensor"], plan)
    losses: list[Tensor] = []

    def by_hand() -> None:
        loss = nn.functional.mse_loss(hand(x), target)
        loss.backward()
        losses.append(loss.detach())

    def ours() -> None:
        losses.append(step((x, target)))

    samples: list[tuple[float, float]] = []
    for _ in range(ROUNDS + 1):
        samples.append((round_of(ours), round_of(by_hand)))
    assert torch.allclose(losses[0], losses[-1], rtol=1e-4), "they compute different things"
    dist.barrier()
    ratios = [one / other for one, other in samples[1:]]
    mine, other = zip(*samples[1:], strict=True)
    written(out, [ratios, statistics.median(mine), statistics.median(other)])


def round_of(call: Callable[[], None]) -> float:
    """Seconds of one step, over a few of them that both ranks begin together."""
    import torch.distributed as dist

    dist.barrier()
    return timed(lambda: [call() for _ in range(STEPS)]) / STEPS


def written(out: str, found: object) -> None:
    """Leave what the first rank found."""
    import torch.distributed as dist

    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


JOBS: dict[str, Callable[..., None]] = {"bubble": bubble_job, "engine": engine_job, "tensor": tensor_job}

if __name__ == "__main__":
    main()
