"""How near are predicted peaks of memory to measured ones? One call, a training step, and one with an optimizer.

    python benchmarks/memory.py
    python benchmarks/memory.py --quick
    python benchmarks/memory.py --models resnet18,gpt2 --times 4 --device cuda:0
    python benchmarks/memory.py --family user --batch 64

A peak is what a step takes at most beyond what was there before it: parameters, what the optimizer keeps and the inputs are
known exactly, and left out. On a CPU it is that of PyTorch's allocator, as its profiler saw it; on CUDA that of
``torch.cuda.max_memory_allocated``. A training step has a backward from gradients of all results, for the loss is the
caller's. The policy is ``single``, under which nothing is compiled: compiled tasks keep what they like.
Nothing here is a time, so it does not matter what else runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from _common import print_machine, table
from _corpus_models import CORPUS  # it finds the tests
from peaks import CASES, allocated, beyond, plan_in, step_of
from torch import nn

from partitioner import Parallel, PartitionerError, partition
from partitioner.ir.footprint import Footprint, footprints
from partitioner.ir.units import format_size

AIM = 0.1

PURPOSES = {"call": (False, "none"), "training step": (True, "none"), "with AdamW": (True, "adamw")}


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    print_machine()
    if options.family:
        family(options.family, options.batch)
        return
    rows: list[list[object]] = []
    errors: list[float] = []
    for name in options.models:
        for purpose, (training, optimizer) in PURPOSES.items():
            row, error = compared(name, purpose, training, optimizer, options)
            rows.append(row)
            errors.append(abs(error))
    print(table(["model", "step", "predicted", "measured", "error", "most is taken at", "reckoned in ms"], rows))
    print(f"\nlargest |error| {max(errors):.1%}, mean {statistics.mean(errors):.2%} of {len(errors)}; the aim is {AIM:.0%}")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(CASES), help="names, with commas between")
    parser.add_argument("--times", type=int, default=1, help="how many times the batch of the tests")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--family", help="models of the corpus instead, on one CPU lane: user, transformers, torchvision, ...")
    parser.add_argument("--batch", type=int, default=16, help="rows of their inputs")
    parser.add_argument("--quick", action="store_true", help="two small models")
    options = parser.parse_args(words)
    options.models = ["towers", "gpt2"] if options.quick else options.models
    return options


def family(name: str, batch: int) -> None:
    """How many models of the corpus are predicted how well; those that are not, by name."""
    within: list[float] = []
    left = 0
    for entry in CORPUS.values():
        if entry.family != name or entry.large or not entry.installed:
            continue
        for purpose, (training, optimizer) in PURPOSES.items():
            torch.manual_seed(0)
            try:
                model, given = entry.build().train(training), entry.inputs(batch=batch, seed=0)
                footprint, found, _ = peak_of(model, *given, training, optimizer, "cpu")
            except (PartitionerError, RuntimeError, ValueError, TypeError):  # in pieces, or not for so many rows
                left += 1
                continue
            expected = beyond(footprint)
            within.append(abs(expected / found - 1))
            if within[-1] > AIM:
                print(f"{entry.name}, {purpose}: {format_size(expected)} for {format_size(found)}, {expected / found - 1:+.1%}")
    shares = ", ".join(f"{sum(error <= most for error in within)} within {most:.1%}" for most in (0.001, 0.01, AIM))
    print(f"\n{len(within)} peaks of {name}: {shares}; {left} not measured: in pieces, or not for {batch} rows")


def compared(
    name: str, purpose: str, training: bool, optimizer: str, options: argparse.Namespace
) -> tuple[list[object], float]:
    """One row, and the error as a share of what was measured."""
    torch.manual_seed(0)
    case = CASES[name]
    model, x = case.build().train(training).to(options.device), case.inputs(options.times * case.batch).to(options.device)
    footprint, found, seconds = peak_of(model, (x,), {}, training, optimizer, options.device)
    error = beyond(footprint) / found - 1
    sizes = format_size(beyond(footprint)), format_size(found)
    return [name, purpose, *sizes, f"{error:+.2%}", footprint.at, f"{seconds * 1e3:.0f}"], error


def peak_of(
    model: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], training: bool, optimizer: str, device: str
) -> tuple[Footprint, int, float]:
    """What is predicted of a model on one lane, the bytes that are measured, and the seconds that the prediction takes."""
    with torch.set_grad_enabled(training):
        parallel = partition(model, [device], example_inputs=args, example_kwargs=named, policy="single", fullgraph=True)
    footprint, seconds = predicted(parallel, training, optimizer)
    steps = torch.optim.AdamW(parallel.parameters()) if optimizer == "adamw" else None
    call = step_of(parallel, training, steps, args, named)
    call()
    return footprint, allocated(call) if device == "cpu" else allocated_on_cuda(call), seconds


def predicted(parallel: Parallel, training: bool, optimizer: str) -> tuple[Footprint, float]:
    """The footprint of a module's plan, and the seconds that it takes to reckon it once libraries are loaded."""
    plan_in(parallel, training, optimizer)
    start = time.perf_counter()
    (footprint,) = footprints(plan_in(parallel, training, optimizer)).values()
    return footprint, time.perf_counter() - start


def allocated_on_cuda(call: Callable[[], object]) -> int:
    """The most bytes of a call, beyond those before it. Workspaces of libraries are there since the first call."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


if __name__ == "__main__":
    main()
