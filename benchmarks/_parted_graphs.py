"""Task graphs made of convex parts that keep every processor equally long: where contiguity is asked for, a known answer.

    line    p0 > p1 > p2 > p3      any task may lead to any task of a later part
    apart   p0 > p1, p0 > p2       parts lead to few others, and some stand side by side
    mutual  p0 <> p1               first halves lead to second halves of all others, so parts lead to each other, and are convex

Each task is fastest in its part, and elsewhere takes longer by more than all its passages keep processors busy. Computing and
moving do not overlap, and every processor computes and moves for 100 seconds: no placement has a smaller largest load.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations
from random import Random
from typing import Literal

from _planted_graphs import END

from partitioner.ir.problem import ORDER, Channel, Kind, Problem, Processor

Shape = Literal["line", "apart", "mutual"]

SHAPES: tuple[Shape, ...] = ("line", "apart", "mutual")

LATENCY = 0.02
"""Seconds of a passage of no bytes."""

MOVING = 0.15
"""Part of the time of processors, on average, that values take."""


def parted(
    random: Random,
    processors: int,
    tasks: int,
    shape: Shape,
    host: bool,
    kinds: int = 0,
    away: tuple[float, float] = (1.2, 4.0),
) -> Problem:
    """A problem of ``tasks`` tasks, in one part for each processor, with a largest load of 100 seconds.

    Args:
        random: of everything that is drawn.
        processors: of one lane each.
        tasks: how many.
        shape: which parts lead to which; see above.
        host: values go over the host, by a link of each processor, and not over a link of each pair.
        kinds: of processors, in turns; 0: each has its own. Of fewer, parts of one kind may be cut elsewhere for less.
        away: how many times as long as in its part a task takes elsewhere, at least and at most, what it moves not counted.
    """
    each = tasks // processors
    home = [number // each for number in range(each * processors)]
    edges = _within(random, processors, each) | _between(random, processors, each, shape)
    moved = (
        MOVING * END * processors / (2 * max(1, len({(one, home[other]) for one, other in edges if home[one] != home[other]})))
    )
    size = [moved * random.uniform(0.2, 1.8) for _ in home]
    table = _seconds(random, home, edges, size, host, kinds or processors, away)
    return _problem(_mixed(random, len(home), edges), processors, edges, size, table, host)


def _within(random: Random, processors: int, each: int) -> set[tuple[int, int]]:
    """Each task of a part but its first reads one or two of those just before it."""
    found: set[tuple[int, int]] = set()
    for first in range(0, processors * each, each):
        wide = random.choice([2, 6, 20])
        for task in range(first + 1, first + each):
            for _ in range(random.randint(1, 2)):
                found.add((random.randint(max(first, task - wide), task - 1), task))
    return found


def _between(random: Random, processors: int, each: int, shape: Shape) -> set[tuple[int, int]]:
    """Edges from part to part, of which every part has some."""
    if shape == "mutual":
        ways = [(one, other) for one, other in permutations(range(processors), 2) if random.random() < 0.7]
    elif shape == "line":
        ways = [(one, other) for one in range(processors) for other in range(one + 1, processors) if random.random() < 0.7]
    else:
        ways = [(random.randrange(other), other) for other in range(1, processors)]
    found: set[tuple[int, int]] = set()
    for one, other in ways:
        sources, targets = (each // 2, each // 2) if shape == "mutual" else (each, 0)
        for _ in range(random.randint(1, max(1, each // 15))):
            found.add((one * each + random.randrange(sources), other * each + random.randrange(targets, each)))
    return found


def _seconds(
    random: Random,
    home: list[int],
    edges: set[tuple[int, int]],
    size: list[float],
    host: bool,
    kinds: int,
    away: tuple[float, float],
) -> list[list[float]]:
    """By kind, the seconds of each task: those at home leave it 100 seconds with all that it moves."""
    count, busy, moved = home[-1] + 1, defaultdict[int, float](float), [0.0] * len(home)
    passed = {(one, home[other]) for one, other in edges if home[one] != home[other]}
    for one, there in passed:
        busy[there] += LATENCY + size[one]
    for one in {one for one, _ in passed} if host else [one for one, _ in passed]:
        busy[home[one]] += LATENCY + size[one]
    for one, other in edges:
        for task in (one, other) if home[one] != home[other] else ():
            moved[task] += 2 * (LATENCY + size[one])
    drawn = [random.uniform(0.2, 1.8) for _ in home]
    total = [sum(each for each, place in zip(drawn, home, strict=True) if place == here) for here in range(count)]
    own = [each * (END - busy[place]) / total[place] for each, place in zip(drawn, home, strict=True)]
    return [
        [
            each if place % kinds == kind else each * random.uniform(*away) + more
            for each, place, more in zip(own, home, moved, strict=True)
        ]
        for kind in range(kinds)
    ]


def _mixed(random: Random, count: int, edges: set[tuple[int, int]]) -> list[int]:
    """A topological order of the tasks by chance, which says nothing of parts."""
    waiting, after = [0] * count, defaultdict[int, list[int]](list)
    for one, other in sorted(edges):
        waiting[other] += 1
        after[one].append(other)
    ready, found = [task for task in range(count) if not waiting[task]], list[int]()
    while ready:
        task = ready.pop(random.randrange(len(ready)))
        found.append(task)
        for other in after[task]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return found


def _problem(
    order: list[int], count: int, edges: set[tuple[int, int]], size: list[float], table: list[list[float]], host: bool
) -> Problem:
    number = {task: place for place, task in enumerate(order)}
    ways = list(permutations(range(count), 2))
    links = [(each,) for each in range(count)] if host else ways
    sources = sorted({number[one] for one, _ in edges})
    value = {task: place for place, task in enumerate(sources)}
    return Problem(
        f"parted-{len(order)}",
        tuple(f"t{task}" for task in range(len(order))),
        tuple(Kind(f"k{here}", {1: [row[task] for task in order]}) for here, row in enumerate(table)),
        tuple(Processor(f"p{here}", here % len(table)) for here in range(count)),
        sorted((number[one], number[other], value.get(number[one], ORDER)) for one, other in edges),
        [(task, size[order[task]]) for task in sources],
        tuple(Channel("-".join(map(str, link)), 1.0, LATENCY, link) for link in links),
        {(one, two): (one, two) if host else (links.index((one, two)),) for one, two in ways},
        overlap=False,
        objective="throughput",
        contiguous=True,
    )
