"""Memory in whole numbers, for solvers that know no others.

demands 0.1 and 0.2, a cap of 0.3    ->    1 and 2, a cap of 3: what fits exactly still does
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf, log2

DECIMALS = 9
"""Places after the point that are kept exactly, if sums stay below `LARGEST`."""

LARGEST = 2.0**52
"""What no sum is above."""

NEAR, OFF = 1e-7, 1e-3
"""How far a number may be from a whole one that it is taken for, and what that makes of a sum of thousands."""


def in_whole(sizes: Sequence[float], caps: Sequence[float]) -> tuple[list[int], list[int]]:
    """Demands and caps on one scale; -1 for a cap that everything fits into. What fits is never said not to.

    >>> in_whole([0.1, 0.2], [0.3, 0.25])
    ([1, 2], [-1, 2])
    >>> in_whole([0.1, 0.2, 0.15], [0.3, 0.25])
    ([10, 20, 15], [30, 25])
    """
    total = sum(sizes)
    if total <= 0:
        return [0] * len(sizes), [-1] * len(caps)
    for scale in (10.0**places for places in range(DECIMALS + 1)):
        scaled = [size * scale for size in sizes]
        if total * scale < LARGEST and all(abs(each - round(each)) <= NEAR for each in scaled):
            needs = [round(each) for each in scaled]
            break
    else:
        scale = 2.0 ** floor(log2(LARGEST / total))
        needs = [floor(size * scale) for size in sizes]
    return needs, [-1 if cap == inf or cap * scale + OFF >= sum(needs) else floor(cap * scale + OFF) for cap in caps]
