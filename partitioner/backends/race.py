"""Which of several ways to compute the same is the fastest here: run side by side, in turns, a handful of times.

round 1   serial  lanes  finer      a machine that slows down for a while slows all of them
round 2   serial  lanes  finer      the median of the rounds counts; it ends early if one is the fastest beyond doubt

Where gradients are recorded a run has a backward, from leaves that stand for the arguments.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

MATTERS = 1.05
"""How much faster one way must be measured to be than another one, to take its place."""

ROUNDS = 7
ENOUGH = 3
"""Rounds after which one way is believed whose slowest sample is faster than any sample of the others."""

SHORTEST = 0.01
"""Seconds that a sample lasts at least: shorter calls are repeated within it. Threads of OpenMP spin for 7.6 ms after an op."""

BUDGET = 10.0
"""Seconds after which no further round begins."""


def measured(
    ways: Mapping[str, Callable[[], object]], devices: Sequence[str] = (), shortest: float = SHORTEST
) -> dict[str, float]:
    """Seconds of one call of each way, which are called in turns.

    Args:
        ways: what to call, by name. Each is called twice before anything is timed.
        devices: torch devices of the accelerators that they use.
        shortest: seconds that a sample lasts at least.

    Returns:
        The median over the rounds, by name, in the order given.
    """
    deadline = time.monotonic() + BUDGET
    for call in ways.values():
        call()
    repeats = {name: max(1, round(shortest / max(_sample(call, 1, devices), 1e-6))) for name, call in ways.items()}
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        if number and (time.monotonic() > deadline or (number >= ENOUGH and _decided(list(samples.values())))):
            break
        for name, call in ways.items():
            samples[name].append(_sample(call, repeats[name], devices))
    return {name: statistics.median(found) for name, found in samples.items()}


def _decided(samples: list[list[float]]) -> bool:
    """Whether one way was faster in its slowest round than the others in any."""
    fastest = min(samples, key=max)
    return all(max(fastest) < min(each) for each in samples if each is not fastest)


def _sample(call: Callable[[], object], repeats: int, devices: Sequence[str]) -> float:
    """Seconds of one call, over several; to the end of what accelerators were given."""
    _synchronise(devices)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _synchronise(devices)
    return (time.perf_counter() - start) / repeats


def _synchronise(devices: Sequence[str]) -> None:
    for device in devices if torch.accelerator.is_available() else ():
        torch.accelerator.synchronize(device)


def is_faster(one: Callable[..., Any], other: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether one function clearly takes less time than another that computes the same, called once in a sample."""
    leaves = [stand_in(value) for value in arguments]
    devices = dict.fromkeys(str(leaf.device) for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type != "cpu")
    wanted = with_gradients(leaves)

    def run(function: Callable[..., Any]) -> None:
        go_back(function(*leaves), wanted)

    found = measured({"one": partial(run, one), "other": partial(run, other)}, list(devices), shortest=0.0)
    return found["one"] * MATTERS < found["other"]


def stand_in(value: Any) -> Any:
    """What stands for an argument where gradients are asked for: the same memory, with no history and no hooks."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def with_gradients(values: Sequence[Any]) -> list[Tensor]:
    """The tensors among some values that need a gradient."""
    return [value for value in values if isinstance(value, Tensor) and value.requires_grad]


def go_back(results: Any, wanted: Sequence[Tensor]) -> None:
    """Go backward from all results that have a history, to leaves."""
    roots = with_gradients(tree_leaves(results)) if wanted else []
    if roots:
        gradients(roots, wanted)


def gradients(roots: Sequence[Tensor], wanted: Sequence[Tensor], keep: bool = False) -> Sequence[Tensor | None]:
    """What roots give to the gradients of leaves, of which some may have none; ``keep`` what is recorded for another time."""
    ones = [torch.ones_like(root) for root in roots]
    return torch.autograd.grad(roots, wanted, ones, retain_graph=keep, allow_unused=True)
