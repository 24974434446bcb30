"""Orders of the units in which stages can be cut: each unit after all that lead to it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from partitioner.planner.throughput.units import Units


def orders(units: Units, seed: int = 0) -> Iterator[list[int]]:
    """Ever more topological orders: by depth-first search, by number, by the bytes that are alive, then by chance.

    Args:
        units: units that make no cycle.
        seed: of those by chance.
    """
    yield ordered(units.after, lambda unit, step: -step)
    yield ordered(units.after, lambda unit, step: unit)
    made, freed = [0.0] * units.count, [0.0] * units.count
    for flow in units.flows:
        made[flow.maker] += flow.size
        for reader in flow.readers:
            freed[reader] += flow.size / len(flow.readers)
    yield ordered(units.after, lambda unit, step: made[unit] - freed[unit])
    yield ordered(units.after, lambda unit, step: step)
    chance = random.Random(seed)
    while True:
        weight = chance.random()
        noise = [chance.random() for _ in range(units.count)]
        yield ordered(units.after, lambda unit, step, w=weight, n=noise: w * n[unit] * units.count - (1 - w) * step)  # type: ignore[misc]


def ordered(after: Sequence[Iterable[int]], key: Callable[[int, int], float]) -> list[int]:
    """Of the units that are ready, always the one with the smallest key, which is asked with the step at which it became so.

    Args:
        after: the units that each one leads to.
        key: of a unit, and how many have come before it was ready.
    """
    waiting = [0] * len(after)
    for followers in after:
        for follower in followers:
            waiting[follower] += 1
    ready = [(key(unit, 0), unit) for unit in range(len(after)) if not waiting[unit]]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        _, unit = heapq.heappop(ready)
        found.append(unit)
        for follower in sorted(after[unit]):
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (key(follower, len(found)), follower))
    return found
