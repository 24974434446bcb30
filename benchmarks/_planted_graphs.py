"""Task graphs on unequal processors, cut out of a schedule in which all of them are busy from beginning to end.

    p0  | a |   c   |  e  |        each task is where it is fastest, and every processor is full: no schedule ends earlier.
    p1  |    b    |d|  f  |        Elsewhere a task takes 1.2 to 4 times as long.

So the optimum is known without a solver, at sizes where no solver proves it.
"""

from __future__ import annotations

from itertools import pairwise, permutations
from math import inf
from random import Random
from typing import Any

from partitioner.ir.problem import ORDER, Channel, Kind, Problem, Processor

END = 100.0
"""Seconds of the schedule."""

SORTS: dict[str, dict[str, Any]] = {"plain": {}, "linked": {"linked": True}, "tight": {"tight": True}}
"""Options of `planted`, by name."""


def planted(random: Random, processors: int, each: int, linked: bool = False, tight: bool = False) -> Problem:
    """``each`` tasks fill every processor from 0 to 100; edges where a task ends before another one starts.

    Args:
        random: of cuts, edges, and seconds where a task is not at home.
        processors: each of a kind of its own.
        each: tasks of a processor.
        linked: values have bytes and travel; in the schedule, all of them have time to.
        tight: tasks hold memory, of which processors have 2% more than the schedule needs.
    """
    cuts = [[0.0, *sorted(random.uniform(0, END) for _ in range(each - 1)), END] for _ in range(processors)]
    spans = sorted((start, end, home) for home, cut in enumerate(cuts) for start, end in pairwise(cut))
    kinds = tuple(
        Kind(f"k{other}", {1: [(end - start) * (1 if home == other else random.uniform(1.2, 4)) for start, end, home in spans]})
        for other in range(processors)
    )
    held = [random.uniform(1, 4) for _ in spans] if tight else []
    caps = [sum(size for size, span in zip(held, spans, strict=False) if span[2] == home) for home in range(processors)]
    pairs = list(permutations(range(processors), 2)) if linked else []
    edges, values = _edges(random, spans, linked)
    return Problem(
        "planted",
        tuple(f"t{number}" for number in range(len(spans))),
        kinds,
        tuple(Processor(f"p{home}", home, memory=1.02 * cap if tight else inf) for home, cap in enumerate(caps)),
        edges,
        values,
        tuple(Channel(f"{one} to {other}", 1.0, 0.5, (one, other)) for one, other in pairs),
        {pair: (number,) for number, pair in enumerate(pairs)},
        memory=held,
    )


def _edges(
    random: Random, spans: list[tuple[float, float, int]], linked: bool
) -> tuple[list[tuple[int, int, int]], list[tuple[int, float]]]:
    """Up to three readers of a task, of those next to start; elsewhere only where its value is there by then."""
    edges: list[tuple[int, int, int]] = []
    values: list[tuple[int, float]] = []
    free: dict[tuple[int, int], float] = {}  # when a link is
    for source, (_, end, home) in enumerate(spans):
        size, there = random.uniform(0.5, 2), {home: end}
        later = [task for task in range(source + 1, len(spans)) if spans[task][0] >= end][:12]
        for target in random.sample(later, min(len(later), random.randint(0, 3))):
            start, _, away = spans[target]
            arrives = there.get(away, max(end, free.get((home, away), 0.0)) + 0.5 + size) if linked else end
            if arrives <= start:
                edges.append((source, target, len(values) if linked else ORDER))
                if away not in there and linked:
                    there[away] = free[home, away] = arrives
        values += [(source, size)] if linked else []
    return edges, values


def whole(random: Random, processors: int, each: int, size: int, overlap: bool = True) -> Problem:
    """Clusters of up to ``size`` tasks of whole seconds, ``each`` of which fill a processor: 20 times `END`, the optimum.

    Tasks of a cluster are connected by values that take as long to travel as a processor has to do.
    """
    end, seconds, edges = int(20 * END), list[float](), list[tuple[int, int]]()
    for _ in range(processors):
        for start, stop in pairwise([0, *sorted(random.sample(range(size + 1, end - size), each - 1)), end]):
            first, count = len(seconds), min(size, stop - start)
            inner = sorted(random.sample(range(1, stop - start), count - 1)) if count > 1 else []
            seconds += [float(after - before) for before, after in pairwise([0, *inner, stop - start])]
            edges += [(random.randrange(max(first, task - 4), task), task) for task in range(first + 1, len(seconds))]
    value = {maker: number for number, maker in enumerate(dict.fromkeys(maker for maker, _ in edges))}
    pairs = list(permutations(range(processors), 2))
    return Problem(
        "whole",
        tuple(f"t{number}" for number in range(len(seconds))),
        (Kind("gpu", {1: seconds}),),
        tuple(Processor(f"p{number}", 0) for number in range(processors)),
        [(maker, reader, value[maker]) for maker, reader in edges],
        [(maker, float(end)) for maker in value],
        tuple(Channel(f"{one} to {other}", 1.0, 0.0, (one, other)) for one, other in pairs),
        {pair: (number,) for number, pair in enumerate(pairs)},
        overlap=overlap,
    )
