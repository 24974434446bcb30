"""Processors that are filled to the last byte, one after the other: of the units that are left, those that fill it best.

    units 5 4 3 3 3, caps 9 and 9     first fit: 5 4 | 3 3 3     caps 10 and 8: 5 4 | 3 3, and 3 is left;  4 3 3 | 5 3

Where caps are what is held in all, each must be met exactly, which rules by size do by luck. Which sums units have is a number
with a bit for each sum, shifted and joined once for each unit.

Source: Bellman, "Dynamic Programming", Princeton University Press, 1957; of one bin after the other: Gupta and Ho, "A new
heuristic algorithm for the one-dimensional bin-packing problem", Production Planning & Control 10(6), 1999.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from random import Random

from partitioner.planner.caps import in_whole
from partitioner.planner.throughput.prices import Park

TRIES = 20
"""Orders of the units, each of which leads to other subsets of the same sums."""

MOST_BITS = 2**27
"""Sums times units that are looked at for one processor; for more there are no answers."""


def filled_up(park: Park) -> Iterator[list[int]]:
    """Placements that fit, contiguous or not, if any were found."""
    units, random = park.units, Random(0)
    sizes, caps = in_whole(units.memory.tolist(), units.problem.caps)
    step = gcd(*sizes) or 1
    sizes, caps = [each // step for each in sizes], [sum(sizes) // step if cap < 0 else cap // step for cap in caps]
    if max(caps) * units.count > MOST_BITS:
        return
    for _ in range(TRIES):
        homes = _one_by_one(random.sample(range(units.count), units.count), units.able_sets, sizes, caps)
        if homes is not None:
            yield homes


def _one_by_one(
    left: Sequence[int], able: Sequence[frozenset[int]], sizes: Sequence[int], caps: Sequence[int]
) -> list[int] | None:
    """The processor of each unit: those that fewest can go to are filled first. ``None``: some do not fit."""
    homes = [-1] * len(left)
    waiting = sorted(range(len(caps)), key=lambda each: sum(each in ways for ways in able))
    while waiting:
        here = waiting.pop(0)
        bound = [unit for unit in left if here in able[unit] and able[unit].isdisjoint(waiting)]
        room = caps[here] - sum(sizes[unit] for unit in bound)
        if room < 0:
            return None
        free = [unit for unit in left if here in able[unit] and not able[unit].isdisjoint(waiting)]
        for unit in (*bound, *(free[place] for place in fullest([sizes[unit] for unit in free], room))):
            homes[unit] = here
        left = [unit for unit in left if homes[unit] < 0]
    return None if left else homes


def fullest(sizes: Sequence[int], room: int) -> list[int]:
    """The places of those sizes of which the sum is as near to what there is room for as can be, and not above.

    >>> fullest([5, 4, 3, 3, 3], 10)
    [1, 2, 3]
    """
    sums = [1]
    for size in sizes:
        sums.append((sums[-1] | sums[-1] << size) & ((1 << room + 1) - 1))
    found, total = list[int](), sums[-1].bit_length() - 1
    for place in reversed(range(len(sizes))):
        if not sums[place] >> total & 1:
            found.append(place)
            total -= sizes[place]
    return found[::-1]
