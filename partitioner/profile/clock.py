"""How long a call takes on a device: warmed up, synchronised, over rounds, without what others do meanwhile.

A short call is repeated within a round. Where something has to be done before each call, such as filling the caches, each is
timed alone. On an accelerator events say when the device began and ended. It is kept busy until the host has issued the calls,
so they take what the device takes for them: what the host takes is another figure (`Device.overhead`).

On a CPU, time for which a single thread waited for a core is no part of its call. Several threads wait for each other too, so
there a round in which any of them waited for a core is taken again. What is left of others only ever adds to a time, so the
lower quartile is what counts. A timing whose quartiles lie far apart, or that rests on one short round, is not steady: it is
used, for there is none better, but should not be kept.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from partitioner.profile.interference import waited

SHORTEST = 1e-4
"""Seconds that a round lasts at least."""

MOST_ROUNDS, LEAST_ROUNDS = 15, 3
STEADY = 1.3
DISTURBED = 0.02
"""The part of a round that may pass with waiting for a core."""

PATIENCE = 4
"""How many times the budget is spent on waiting for rounds without others."""

BUDGET = 0.1
"""Seconds that are spent on one op with one number of threads, unless it is longer than that."""

ISSUING = 2e-5
"""Seconds in which a host has surely issued a call, and ten times that whatever surrounds it."""

CYCLES = 2e9
"""Of an accelerator in a second, at most."""

Call = Callable[[], object]


class Disturbed(Exception):
    """Others used the cores in every round."""


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

    Raises:
        Disturbed: several threads never had their cores for themselves.

    Example:
        >>> 0.001 <= time_of(lambda: time.sleep(0.001)).seconds < 0.1
        True
    """
    device = torch.device(place)
    several = device.type == "cpu" and torch.get_num_threads() > 1
    run = _on_cpu if device.type == "cpu" else _on_accelerator(device)
    call()
    start = time.perf_counter()
    guess = _round(run, call, 1, before, several).seconds
    trip = max(time.perf_counter() - start, 1e-7)
    repeat = 1 if before is not None else max(1, round(SHORTEST / max(guess, 1e-7)))
    wanted = int(min(MOST_ROUNDS, max(LEAST_ROUNDS, budget / (trip * repeat))))
    found = list[_Round]()
    while sum(each.alone for each in found) < wanted:
        found.append(_round(run, call, repeat, before, several))
        if time.perf_counter() - start > PATIENCE * max(budget, trip):
            break
    alone = [each.seconds for each in found if each.alone]
    if not alone:
        raise Disturbed
    if len(alone) < 2:
        return Timing(alone[0], 1.0 if guess > budget else math.inf)
    low, _, high = statistics.quantiles(alone, n=4, method="inclusive")
    return Timing(low, high / max(low, 1e-12))


@dataclass(frozen=True)
class _Round:
    """Seconds of one call in a round, and whether no other work was in its way."""

    seconds: float
    alone: bool


def _round(run: Callable[[Call, int], float], call: Call, repeat: int, before: Call | None, several: bool) -> _Round:
    if before is not None:
        before()
    if run is not _on_cpu:
        return _Round(run(call, repeat), True)
    waiting = waited(several)
    seconds = run(call, repeat)
    waiting = (waited(several) - waiting) / repeat
    return _Round(seconds, waiting <= DISTURBED * seconds) if several else _Round(max(seconds - waiting, 0.01 * seconds), True)


def _on_cpu(call: Call, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


def _on_accelerator(device: torch.device) -> Callable[[Call, int], float]:
    def run(call: Call, repeat: int) -> float:
        begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
        stream = torch.accelerator.current_stream(device)  # which is not the current device's, and an event would take that
        hold(device, (10 + repeat) * ISSUING)
        begin.record(stream)
        for _ in range(repeat):
            call()
        end.record(stream)
        torch.accelerator.synchronize(device)
        return float(begin.elapsed_time(end)) / 1e3 / repeat

    return run


def hold(device: torch.device, seconds: float) -> None:
    """Keep the current stream of an accelerator busy for at least so long, if its backend knows how.

    What the host issues meanwhile follows without a gap. Otherwise short kernels are over before the next one is issued, and
    who times them times the host.

    Args:
        device: the accelerator.
        seconds: how long.
    """
    sleep = getattr(torch.get_device_module(device), "_sleep", None)
    if sleep is None:
        torch.accelerator.synchronize(device)
        return
    with torch.accelerator.device_index(device.index or 0):
        sleep(int(seconds * CYCLES))
