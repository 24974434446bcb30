"""A placement improved from its clusters down, again and again: what moves is large at first, and small in the end.

    placed    a b c d | e f g h
    clusters  ab  cd  | ef  gh     of units that share a processor, others each time, so the placement stays as it is
    moved     ab  gh  | cd  ef     what single units would have reached over many worse placements
    units     a g h   | b c d e f  move, level by level, from there, even if it is worse than what was known

Source: Walshaw, "Multilevel refinement for combinatorial optimisation problems", Annals of Operations Research 131, 2004
(iterated multilevel).
"""

from __future__ import annotations

from time import monotonic

from partitioner.planner.throughput.levels import BLOCKS, PAIRS, levels_of
from partitioner.planner.throughput.search import WARM, Annealing, moment

CYCLES = 3
"""Times that units are clustered: a few long walks find more than many short ones."""

FEWEST, LARGEST = (6, 10, 20, 40), (0.1, 0.25)
"""Clusters for each processor at which to stop, and the part of its mean work that one may have at most: by chance."""

APART = 0.15
"""Part of the units that are clustered among themselves only, by chance, so that clusters differ each time."""

MILD = 0.2
"""Energies that a worse move may add in the beginning, once larger clusters have moved."""

MOST, SLOWLY = 20_000, 10**9
"""Units up to which there is time for it, and moves that there is no time for."""


def cycled(search: Annealing, bound: float, until: float, cycles: int = CYCLES) -> None:
    """Improve the best placement of a search until a moment, by the monotonic clock.

    Args:
        search: what is improved.
        bound: seconds that no placement beats.
        until: when to stop.
        cycles: times that units are clustered.
    """
    for left in range(cycles, 0, -1):
        if search.least > bound * (1 + 1e-9):
            _cycle(search, bound, moment(until, left))


def _cycle(search: Annealing, bound: float, until: float) -> None:
    """Cluster the units, move clusters, and what is in them, with more time for levels of more units."""
    random, known = search.random, search.park.units
    if known.count > MOST or (known.contiguous and known.reach is None):
        return search.run(until, 1, SLOWLY, bound)
    label = [(home, int(random.random() < APART)) for home in search.best]
    made = BLOCKS if known.reach is None else PAIRS
    made = made._replace(fewest=random.choice(FEWEST), largest=random.choice(LARGEST))
    levels = levels_of(search.park, made, [label[unit] for unit in known.unit_of])
    shares, tasks = [level.units.count**0.5 for level in levels], known.spread_over(search.best)
    for number in reversed(range(len(levels))):
        level, warm = levels[number], WARM if number == len(levels) - 1 else MILD
        walk = Annealing(level, level.units.of_tasks(tasks), random.getrandbits(30))
        walk.powers = search.powers
        walk.run(monotonic() + (until - monotonic()) * shares[number] / sum(shares[: number + 1]), 1, SLOWLY, bound, warm)
        search.take(known.of_tasks(level.units.spread_over(walk.best)))
        tasks = level.units.spread_over(walk.last)
    return None
