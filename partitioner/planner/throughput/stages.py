"""Optimal stages between cut points: dynamic programming over nested sets of units, whatever these sets are.

    cut points   {}  {a}  {a,b}  {a,c}  {a,b,c}       a stage is what one cut point has more than another one
    column j     the loads of all stages that end at cut point j, for each class of processors

``best[state][j]`` is the smallest largest load with which the units of cut point j can be placed on the processors that the
state says are used: "Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski et al., NeurIPS 2020). The
cut points are all down-closed sets of units (`ideals.py`), for the best of all, or those of one order (`line.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from time import monotonic
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.throughput.prices import Alike, Park
from partitioner.planner.throughput.units import Floats

Numbers = NDArray[np.int64]
Bits = NDArray[np.bool_]

MOST_STATES = 1_024
"""Ways to have used some of each class of processors; above, processors are used in one order only."""


class Cuts(Protocol):
    """Cut points, each after all that are within it: the first is empty, the last is everything."""

    @property
    def size(self) -> int:
        """How many there are."""

    def column(self, last: int, limit: float, reached: Bits) -> tuple[Numbers, Floats]:
        """Where stages that end at ``last`` may begin, and their loads by class; asked for in ascending order, once each.

        Stages with a load above ``limit`` may be left out, and those that begin where ``reached`` is false.
        """

    def stage(self, first: int, last: int) -> list[int]:
        """The units of a stage."""


@dataclass(frozen=True)
class States:
    """Which processors are used: ``(from, to)`` for each class that a further stage may be of.

    Args:
        count: how many states there are; the first is that none is used.
        steps: by class, the states before and after one more of its processors is used.
        ordered: whether each state is also reached from the one before by using nothing.
    """

    count: int
    steps: tuple[tuple[Numbers, Numbers], ...]
    ordered: bool


def states_of(classes: Sequence[Alike]) -> States:
    """All ways to have used processors or, if these are too many, the processors in the order of their numbers."""
    counts = [len(each.processors) for each in classes]
    if prod(count + 1 for count in counts) <= MOST_STATES:
        ways = list(product(*(range(count + 1) for count in counts)))
        number = {way: index for index, way in enumerate(ways)}
        steps = []
        for kind in range(len(counts)):
            more = [(*way[:kind], way[kind] + 1, *way[kind + 1 :]) for way in ways]
            pairs = [(number[way], number[later]) for way, later in zip(ways, more, strict=True) if later in number]
            steps.append(_columns(pairs))
        return States(len(ways), tuple(steps), False)
    sequence = sorted((number, kind) for kind, each in enumerate(classes) for number in each.processors)
    chosen = [[place for place, (_, kind) in enumerate(sequence) if kind == wanted] for wanted in range(len(classes))]
    steps = [_columns([(place, place + 1) for place in places]) for places in chosen]
    return States(len(sequence) + 1, tuple(steps), True)


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def best_stages(
    cuts: Cuts, classes: Sequence[Alike], limit: float = inf, until: float = inf
) -> tuple[float, list[tuple[int, int, int]]] | None:
    """The stages with the smallest largest load.

    Args:
        cuts: where stages may begin and end.
        classes: the processors, those that are alike together.
        limit: only loads up to this one are of interest.
        until: moment, by the monotonic clock, at which to give up.

    Returns:
        The load, and each stage's first and last cut point and class; ``None`` if there is no answer within the limits.
    """
    states = states_of(classes)
    best = np.full((states.count, cuts.size), inf)
    came = np.full((2, states.count, cuts.size), -1, dtype=np.int32)  # the row and the class; -1: the state before
    best[:, 0] = 0.0 if states.ordered else inf
    best[0, 0] = 0.0
    reached = np.zeros(cuts.size, dtype=bool)
    reached[0] = True
    for last in range(1, cuts.size):
        if not last % 16 and monotonic() > until:
            return None
        rows, loads = cuts.column(last, limit, reached)
        alive = reached[rows] & (loads <= limit).any(axis=0)
        if alive.any():
            _extend(states, best, came, last, rows[alive], loads[:, alive])
            reached[last] = bool((best[:, last] <= limit).any() and np.isfinite(best[:, last]).any())
    end = int(best[:, -1].argmin())
    if not best[end, -1] <= limit or best[end, -1] == inf:
        return None
    return float(best[end, -1]), _trace(states, came, end, cuts.size - 1)


def _extend(states: States, best: Floats, came: NDArray[np.int32], last: int, rows: Numbers, loads: Floats) -> None:
    """Find the best way to reach one cut point in every state."""
    for kind, (old, new) in enumerate(states.steps):
        if not old.size:
            continue
        reached = np.maximum(best[np.ix_(old, rows)], loads[kind])
        pick = reached.argmin(axis=1)
        found = reached[np.arange(len(old)), pick]
        better = found < best[new, last]
        best[new[better], last] = found[better]
        came[0, new[better], last] = rows[pick[better]]
        came[1, new[better], last] = kind
    if states.ordered:
        least = np.minimum.accumulate(best[:, last])
        idle = least < best[:, last]
        best[idle, last] = least[idle]
        came[:, idle, last] = -1


def _trace(states: States, came: NDArray[np.int32], state: int, last: int) -> list[tuple[int, int, int]]:
    found = []
    while last:
        first, kind = int(came[0, state, last]), int(came[1, state, last])
        if kind < 0:
            state -= 1
            continue
        found.append((first, last, kind))
        old, new = states.steps[kind]
        state, last = int(old[new == state][0]), first
    return found[::-1]


def placed_stages(park: Park, cuts: Cuts, stages: Sequence[tuple[int, int, int]]) -> list[int]:
    """The processor of each unit: the stages of a class take its processors in order."""
    free = [list(reversed(each.processors)) for each in park.classes]
    homes = [-1] * park.units.count
    for first, last, kind in stages:
        processor = free[kind].pop()
        for unit in cuts.stage(first, last):
            homes[unit] = processor
    return homes


def joined(compute: Floats, sends: Floats, receives: Floats, overlap: bool) -> Floats:
    """Loads from their three parts."""
    return np.maximum(compute, np.maximum(sends, receives)) if overlap else compute + sends + receives
