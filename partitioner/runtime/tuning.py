"""Which of several ways to compute the same is the fastest here: run side by side, in turns, a handful of times.

round 1   serial  lanes  finer      a machine that slows down for a while slows all of them
round 2   serial  lanes  finer      the median of the rounds counts; it ends early if one is the fastest beyond doubt
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

ROUNDS = 7
ENOUGH = 3
"""Rounds after which one way is believed whose slowest sample is faster than any sample of the others."""

SHORTEST = 0.01
"""Seconds that a sample lasts at least: shorter calls are repeated within it. Threads of OpenMP spin for 7.6 ms after an op."""

BUDGET = 10.0
"""Seconds after which no further round begins."""


def measured(ways: Mapping[str, Callable[[], object]], devices: Sequence[str] = ()) -> dict[str, float]:
    """Seconds of one call of each way, which are called in turns.

    Args:
        ways: what to call, by name. Each is called twice before anything is timed.
        devices: torch devices of the accelerators that they use.

    Returns:
        The median over the rounds, by name, in the order given.
    """
    deadline = time.monotonic() + BUDGET
    for call in ways.values():
        call()
    repeats = {name: max(1, round(SHORTEST / max(_sample(call, 1, devices), 1e-6))) for name, call in ways.items()}
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
