"""Processors that are filled to the last byte, one after the other: of the units that are left, those that fill it best.

    units 5 4 3 3 3, caps 9 and 9     first fit: 5 4 | 3 3 3     caps 10 and 8: 5 4 | 3 3, and 3 is left;  4 3 3 | 5 3

Where caps are what is held in all, each must be met exactly, which rules by size do by luck. Which sums units have is a number
with a bit for each sum, shifted and joined once for each unit. Long fractions have too many sums; there all subsets of one half
of some units are matched with those of the other half, beside as many of the others as leave about half of these to be chosen.

Source: Bellman, "Dynamic Programming", Princeton University Press, 1957; of one bin after the other: Gupta and Ho, "A new
heuristic algorithm for the one-dimensional bin-packing problem", Production Planning & Control 10(6), 1999; of halves: Horowitz
and Sahni, "Computing partitions with applications to the knapsack problem", Journal of the ACM 21(2), 1974.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from random import Random

import numpy as np
from numpy.typing import NDArray

from partitioner.planner.caps import in_whole
from partitioner.planner.throughput.prices import Park

TRIES = 20
"""Orders of the units, each of which leads to other subsets of the same sums."""

MOST_BITS = 2**27
"""Sums times units that are looked at for one processor; for more, all subsets of each half of the units are."""

SPARE_BITS, MOST_HALVED = 6, 40
"""How many more units are halved than sums have bits, so that some of their subsets meet any sum, and how many at most: a
million subsets of each half."""

SUBSETS = 2**23
"""Subsets of halves that are made for one processor, in all tries."""

Fullest = Callable[[Sequence[int], int], list[int]]


def filled_up(park: Park) -> Iterator[list[int]]:
    """Placements that fit, contiguous or not, if any were found."""
    units, random = park.units, Random(0)
    sizes, caps = in_whole(units.memory.tolist(), units.problem.caps)
    step = gcd(*sizes) or 1
    sizes, caps = [each // step for each in sizes], [sum(sizes) // step if cap < 0 else cap // step for cap in caps]
    fine = max(caps) * units.count > MOST_BITS
    for _ in range(SUBSETS >> _width(sizes) // 2 if fine else TRIES):
        order = random.sample(range(units.count), units.count)
        homes = _one_by_one(order, units.able_sets, sizes, caps, halved if fine else fullest)
        if homes is not None:
            yield homes


def _one_by_one(
    left: Sequence[int], able: Sequence[frozenset[int]], sizes: Sequence[int], caps: Sequence[int], best: Fullest
) -> list[int] | None:
    """The processor of each unit: those that fewest can go to are filled first. ``None``: some do not fit."""
    homes = [-1] * len(left)
    waiting = sorted(range(len(caps)), key=lambda each: sum(each in ways for ways in able))
    while waiting:
        if sum(sizes[unit] for unit in left) > sum(caps[each] for each in waiting):
            return None
        here = waiting.pop(0)
        bound = [unit for unit in left if here in able[unit] and able[unit].isdisjoint(waiting)]
        room = caps[here] - sum(sizes[unit] for unit in bound)
        if room < 0:
            return None
        free = [unit for unit in left if here in able[unit] and not able[unit].isdisjoint(waiting)]
        for unit in (*bound, *(free[place] for place in best([sizes[unit] for unit in free], room))):
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


def halved(sizes: Sequence[int], room: int) -> list[int]:
    """Likewise, of sizes with too many sums: of few sizes the fullest, of more it is looked for beside some of the last ones.

    >>> halved([5, 4, 3], 8)
    [0, 2]
    """
    width = min(len(sizes), _width(sizes))
    taken, total = list[int](), sum(sizes[:width]) // 2
    for place in range(width, len(sizes)):
        if total + sizes[place] <= room:
            taken.append(place)
            total += sizes[place]
    room -= sum(sizes[place] for place in taken)
    middle = width // 2
    first, second = _sums(sizes[:middle]), _sums(sizes[middle:width])
    order = np.argsort(second, kind="stable")
    ones = np.flatnonzero(first <= room)
    others = np.searchsorted(second[order], room - first[ones], side="right") - 1
    best = int((first[ones] + second[order][others]).argmax())
    chosen = int(ones[best]) | int(order[others[best]]) << middle
    return [*(place for place in range(width) if chosen >> place & 1), *taken]


def _width(sizes: Sequence[int]) -> int:
    """How many units are halved."""
    return min(sum(sizes).bit_length() + SPARE_BITS, MOST_HALVED)


def _sums(sizes: Sequence[int]) -> NDArray[np.int64]:
    """The sums of all subsets, by their bits."""
    found = np.zeros(1, dtype=np.int64)
    for size in sizes:
        found = np.concatenate([found, found + size])
    return found
