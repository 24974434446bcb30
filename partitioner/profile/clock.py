"""How long a call takes on a device: warmed up, synchronised, over rounds.

A short call is repeated within a round. Where something has to be done before each call, such as emptying the caches, each is
timed alone. On an accelerator events say when the device began and ended, and calls that follow each other overlap the host's
work with the device's, as they do in a program.

Whatever else runs on the machine only ever adds to a time, so the lower quartile is what counts. It tells more of the op than
the median where others are busy, and the same where nobody is. A timing whose quartiles lie far apart is not steady: it is
used, for there is none better, but should not be kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

SHORTEST = 1e-4
"""Seconds that a round lasts at least."""

MOST_ROUNDS, LEAST_ROUNDS = 15, 3
STEADY = 1.3
BUDGET = 0.1
"""Seconds that are spent on one op with one number of threads, unless it is longer than that."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, and how many times as long the upper quartile of the rounds is as the lower one."""

    seconds: float
    spread: float = 1.0

    @property
    def steady(self) -> bool:
        """Whether it is worth keeping."""
        return self.spread <= STEADY


def time_of(call: Call, place: str = "cpu", before: Call | None = None, budget: float = BUDGET) -> Timing:
    """Time a call.

    Args:
        call: what to time.
        place: torch device on which it runs.
        before: done before each call, and not timed.
        budget: seconds that all rounds may take together; at least one is taken.

    Example:
        >>> 0.001 <= time_of(lambda: time.sleep(0.001)).seconds < 0.1
        True
    """
    run = _on_cpu if torch.device(place).type == "cpu" else _on_accelerator(torch.device(place))
    call()
    start = time.perf_counter()
    if before is not None:
        before()
    guess = run(call, 1)
    round_trip = max(time.perf_counter() - start, 1e-7)
    if guess > budget:
        return Timing(guess)
    repeat = 1 if before is not None else max(1, round(SHORTEST / max(guess, 1e-7)))
    found = []
    for _ in range(int(min(MOST_ROUNDS, max(LEAST_ROUNDS, budget / (round_trip * repeat))))):
        if before is not None:
            before()
        found.append(run(call, repeat))
    low, _, high = statistics.quantiles(found, n=4, method="inclusive")
    return Timing(low, high / max(low, 1e-12))


@contextmanager
def threads(number: int) -> Iterator[None]:
    """A block in which ops of this thread may use so many threads.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _on_cpu(call: Call, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def _on_accelerator(device: torch.device) -> Callable[[Call, int], float]:
    def run(call: Call, repeat: int) -> float:
        begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        torch.accelerator.synchronize(device)
        begin.record()
        for _ in range(repeat):
            call()
        end.record()
        torch.accelerator.synchronize(device)
        return float(begin.elapsed_time(end)) / 1e3 / repeat

    return run
