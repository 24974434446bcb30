"""What do planned stages, schedules and wiring give over ranks?

    python benchmarks/distributed.py
    python benchmarks/distributed.py --only bubble

balance   the longest stage over the mean, by measured forwards: planned stages beside stages with equally many ops
bubble    the part of a step in which ranks wait, with stages that sleep, beside (p - 1) / (v m + p - 1)

Ranks are processes on gloo. Stages that sleep need no core, so that two cores are enough for four of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import job, print_machine, table, written
from torch import Tensor, nn

ROUNDS = 9
SLEEP = 0.02
"""Seconds that a stage's forward sleeps for a microbatch; its backward sleeps twice as long."""

SCHEDULES = (("gpipe", 2, 1, 4), ("1f1b", 2, 1, 4), ("1f1b", 4, 1, 4), ("1f1b", 4, 1, 8), ("interleaved_1f1b", 2, 2, 4))


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("balance", "bubble"))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.job:
        bubble_job(*json.loads(options.job))
        return
    print_machine()
    for name, section in (("balance", balance), ("bubble", bubble)):
        if options.only in (None, name):
            print(f"{name}\n")
            section()


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
        step = job(__file__, ranks, schedule, ranks, each, count)
        work = count * each * 3 * SLEEP
        formula = (ranks - 1) / (each * count + ranks - 1)
        rows.append([schedule, ranks, each, count, f"{1e3 * step:.0f}", f"{1 - work / step:.1%}", f"{formula:.1%}"])
    print(table(("schedule", "ranks", "stages each", "microbatches", "step ms", "bubble", "formula"), rows), "\n")


def bubble_job(schedule: str, ranks: int, each: int, count: int, out: str) -> None:
    """Median step of stages that sleep."""
    from partitioner.distributed import parallelize

    declare_sleep()
    model = nn.Sequential(*(Sleeper() for _ in range(ranks * each)))
    asked = {"mesh": {"pipeline": ranks}, "schedule": schedule, "stages_per_rank": each, "microbatches": count}
    x = torch.ones(count, 8)
    _, step = parallelize(model, x, {"distributed": asked}, lambda output: output.mean())
    samples = [timed(lambda: step(x)) for _ in range(4)]
    written(out, statistics.median(samples[1:]))


if __name__ == "__main__":
    main()
