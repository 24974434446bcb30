"""Which of several ways to compute the same is the fastest here: run side by side, in turns, a handful of times.

round 1   serial  lanes  finer      a machine that slows down for a while slows all of them, so what counts is
round 2   serial  lanes  finer      how each compares with the others of its round: the median of that over all rounds
...                                 until who is the fastest is told from noise, or time is up

Where gradients are recorded a run has a backward, from leaves that stand for the arguments.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

Logarithms = NDArray[np.float64]
"""Of seconds: a row for each round, a column for each way."""

MATTERS = 1.05
"""How much faster one way must be measured to be than another one, to take its place."""

FEWEST, ROUNDS, MOST = 5, 7, 31
"""Rounds: at least; those for which there is time in any case; and at most."""

PATIENCE = 1.0
"""Seconds after which no further round begins that only a noisy machine asks for."""

SHORTEST = 0.01
"""Seconds that a sample lasts at least: shorter calls are repeated within it. Threads of OpenMP spin for 7.6 ms after an op."""

LONG = 0.5
"""Seconds of a call from which on nobody waits for more plans than he has asked for."""

BUDGET = 10.0
"""Seconds after which no further round begins."""


def measured(
    ways: Mapping[str, Callable[[], object]], devices: Sequence[str] = (), shortest: float = SHORTEST, pause: float = 0.0
) -> dict[str, float]:
    """Seconds of one call of each way, which are called in turns.

    Args:
        ways: what to call, by name. Each is called twice before anything is timed.
        devices: torch devices of the accelerators that they use.
        shortest: seconds that a sample lasts at least.
        pause: seconds before each sample.

    Returns:
        Of a usual round, by name, in the order given.
    """
    start = time.monotonic()
    repeats = {name: max(1, round(shortest / max(_sample(call, 1, devices), 1e-6))) for name, call in ways.items()}
    rounds: list[list[float]] = []
    while len(rounds) < MOST and not (rounds and _is_enough(np.log(rounds), time.monotonic() - start)):
        rounds.append([_sample(call, repeats[name], devices, pause) for name, call in ways.items()])
    return dict(zip(ways, np.exp(_usual(np.log(rounds))).tolist(), strict=True))


def _is_enough(rounds: Logarithms, spent: float) -> bool:
    """Whether no further round is needed, or there is no time for one."""
    late = spent > (BUDGET if len(rounds) < ROUNDS else PATIENCE)
    return late or (len(rounds) >= FEWEST and _is_told_apart(rounds))


def _usual(rounds: Logarithms) -> Logarithms:
    """What each way takes in a usual round: how it mostly lies to the middle of its own round.

    >>> np.exp(_usual(np.log([[1.0, 2.0], [10.0, 20.0], [1.1, 2.2]]))).round(3).tolist()
    [1.1, 2.2]
    """
    levels = np.median(rounds, axis=1, keepdims=True)
    found: Logarithms = np.median(rounds - levels, axis=0) + np.median(levels)
    return found


def _is_told_apart(rounds: Logarithms) -> bool:
    """Whether the fastest is that in every round, or known by how much: to a third of what matters, a median's standard error.

    >>> alike, noisy, slower = [[1.0, 1.01]] * 5, [[1.0, 1.4], [1.3, 1.1]] * 3, [[1.0, 1.1], [1.0, 2.0]] * 3
    >>> _is_told_apart(np.log(alike)), _is_told_apart(np.log(noisy)), _is_told_apart(np.log(slower))
    (True, False, True)
    """
    behind = rounds - rounds[:, [_usual(rounds).argmin()]]
    low, high = np.quantile(behind, (0.25, 0.75), axis=0)
    errors = 0.93 * (high - low) / math.sqrt(len(rounds))  # 1.25 deviations over the root, a deviation being 1 / 1.35 of that
    return bool(np.all((behind.min(axis=0) > 0) | (errors < math.log(MATTERS) / 3)))


def _sample(call: Callable[[], object], repeats: int, devices: Sequence[str], pause: float = 0.0) -> float:
    """Seconds of one call, over several; to the end of what accelerators were given.

    A call before them is not timed: it starts the threads that another way has sent home, which may take 20 ms.
    """
    if pause:
        time.sleep(pause)
    call()
    _synchronise(devices)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _synchronise(devices)
    return max(time.perf_counter() - start, 1e-9) / repeats


def _synchronise(devices: Sequence[str]) -> None:
    for device in devices if torch.accelerator.is_available() else ():
        torch.accelerator.synchronize(device)


def is_faster(one: Callable[..., Any], other: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether one function clearly takes less time than another that computes the same, called once in a sample.

    Threads have gone to sleep before each: a kernel may wake them on their caller's core, and leave them there for a while.
    """
    leaves = [stand_in(value) for value in arguments]
    devices = dict.fromkeys(str(leaf.device) for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type != "cpu")
    wanted = with_gradients(leaves)

    def run(function: Callable[..., Any]) -> None:
        go_back(function(*leaves), wanted)

    found = measured({"one": partial(run, one), "other": partial(run, other)}, list(devices), shortest=0.0, pause=SHORTEST)
    return found["one"] * MATTERS < found["other"]


def stand_in(value: Any) -> Any:
    """What stands for an argument where gradients are recorded: the same memory, with no history and no hooks."""
    recorded = isinstance(value, Tensor) and torch.is_grad_enabled()
    return value.detach().requires_grad_(value.requires_grad) if recorded else value


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
