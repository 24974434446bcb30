"""Contiguous parts for a makespan: an order of all tasks, cut into one strip for each processor.

    two towers    source  a1 a2 a3 | b1 b2 b3  sink        depth first: strips run at the same time
                  source  a1 b1 a2 | b2 a3 b3  sink        by depth: the second waits for the first

No path leaves a strip and comes back, whatever the order, for all edges lead forwards. Where tasks are placed one by one, by
rank, paths of a graph of some hundred tasks have soon left every processor but one, and that one gets all the rest.

A strip ends no sooner than after the first head, the work and the least tail of its tasks. Cuts make the latest end small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import inf
from random import Random
from time import perf_counter

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.planner.latency.bounds import reach
from partitioner.planner.latency.tries import Found, fixed_at, waiting
from partitioner.planner.throughput.blocks import blocks, numbered
from partitioner.planner.throughput.orders import ordered
from partitioner.planner.throughput.units import Units

KEPT = 3
"""Schedules in strips that are kept, the best ones."""

LEAST_TRIED, MOST_TRIED = 2, 256
"""Orders that are cut at least and at most, while there is time."""

LARGE, LARGEST = 5_000, 20_000
"""Tasks beyond which one try is one order, and beyond which that is scheduled once."""

FEWER = 0.3
"""Part of the later orders that not all processors share, where values take time to travel."""

HALVINGS = 10
"""How often the time in which strips are to end is halved to what is too short and what is not."""


def in_strips(problem: Problem, tries: int, least: float, until: float = inf) -> list[Found]:
    """The best schedules of contiguous strips, the best first; none where none was found.

    They are looked for where parts must be contiguous, and where processors stand still while values travel: little does.

    Args:
        problem: what is scheduled; its groups are closed (`planner/latency/homes.py`).
        tries: orders that are cut, where there is time.
        least: seconds that no schedule beats: nothing is left to do there.
        until: moment, on `time.perf_counter`, after which no further order is cut.
    """
    found: list[Found] = []
    if not (problem.contiguous or problem.stands) or len(problem.processors) < 2 or len(problem.tasks) < 2:
        return found
    count = len(problem.tasks)
    for homes in islice(_strips(problem, least), min(max(tries, 1 if count > LARGE else LEAST_TRIED), MOST_TRIED)):
        if homes:
            with suppress(PlacementError):  # full to the last byte, and bytes are no whole numbers
                best = min(waiting(fixed_at(problem, homes), homes, 1 if count > LARGEST else 2), key=lambda each: each.seconds)
                found = sorted([*found, replace(best, rank=f"in strips, {best.rank}")], key=lambda each: each.seconds)[:KEPT]
        if perf_counter() > until or (found and found[0].seconds <= least * (1 + 1e-9)):
            break
    return found


def _strips(problem: Problem, least: float) -> Iterator[list[int]]:
    """The processor of each task, for one order after the other; empty where no cuts were found."""
    units = blocks(Units(problem, True, numbered(problem.group_of)))
    line, chance = Line(units, least), Random(0)
    for turn, order in enumerate(_orders(units, chance)):
        processors = list(range(len(problem.processors)))
        if turn >= LEAST_TRIED and not problem.alike:
            chance.shuffle(processors)
        if turn >= LEAST_TRIED and problem.travels and chance.random() < FEWER:
            processors = processors[: chance.randint(1, len(processors))]
        homes = line.cut(order, processors)
        yield units.spread_over(homes) if homes else []


def _orders(units: Units, chance: Random) -> Iterator[list[int]]:
    """Depth first from the end and from the beginning, then with ever other parts of that left to chance."""
    yield ordered(units.before, lambda unit, step: -step)[::-1]
    yield ordered(units.after, lambda unit, step: -step)
    while True:
        yield _drawn(units, chance)


def _drawn(units: Units, chance: Random) -> list[int]:
    share, backwards = chance.random() ** 2, chance.random() < 0.5
    noise = [share * units.count * chance.random() for _ in range(units.count)]
    found = ordered(units.before if backwards else units.after, lambda unit, step: noise[unit] - (1 - share) * step)
    return found[::-1] if backwards else found


class Line:
    """What cuts orders of the same units.

    Args:
        units: what is placed; they make no cycle.
        least: seconds that no schedule beats.
    """

    def __init__(self, units: Units, least: float) -> None:
        self.units, self.least = units, least
        head, tail, _ = reach(units.problem)
        self.head = [min(float(head[task]) for task in tasks) for tasks in units.members]
        self.tail = [min(float(tail[task]) for task in tasks) for tasks in units.members]
        self.held = units.memory.tolist()

    def cut(self, order: Sequence[int], processors: Sequence[int]) -> list[int]:
        """The processor of each unit: a strip for each processor in turn that can run its first unit. Empty: none found."""
        best, high = self.filled(order, processors, inf)
        low = self.least
        for _ in range(HALVINGS if best else 0):
            middle = (low + high) / 2
            homes, ends = self.filled(order, processors, middle)
            if homes:
                best, high = homes, min(ends, middle)
            else:
                low = middle
        return best

    def filled(self, order: Sequence[int], processors: Sequence[int], most: float) -> tuple[list[int], float]:
        """Each processor with as much of an order as it ends in time, and the latest end; empty if something is left over."""
        homes, place, latest, left, rows = [-1] * len(order), 0, 0.0, list(processors), self.units.rows
        while place < len(order):
            able = [each for each in left if rows[each][order[place]] < inf]
            if not able:
                return [], inf
            left.remove(able[0])
            first = place
            place, end = self.taken(order, first, able[0], most)
            for unit in order[first:place]:
                homes[unit] = able[0]
            latest = max(latest, end)
        return homes, latest

    def taken(self, order: Sequence[int], first: int, processor: int, most: float) -> tuple[int, float]:
        """Where the strip of a processor ends that begins at a place of an order, and when it has done it, at least."""
        heads, tails, held, row = self.head, self.tail, self.held, self.units.rows[processor]
        head, tail, work, room, end = inf, inf, 0.0, self.units.problem.caps[processor], 0.0
        for place in range(first, len(order)):
            unit = order[place]
            head, tail, work, room = min(head, heads[unit]), min(tail, tails[unit]), work + row[unit], room - held[unit]
            if room < 0 or work == inf or head + work + tail > most:
                return place, end
            end = head + work + tail
        return len(order), end
