"""Contiguous parts from convex clusters: what belongs together is found before it is known who has it.

    units      a > b > c    a > d > c     pairs that exchange much, and between which nothing lies: ab, dc, but never ac
    clusters   placed on processors, nearly contiguous at first, then mended, then moved as contiguity allows
    units      settle, level by level, from where clusters are

Of several equal processors no price says which one a task belongs to, and single tasks cannot move without tearing parts.

Source: Herrmann, Oezkaya, Ucar, Kaya and Catalyurek, "Multilevel algorithms for acyclic partitioning of directed acyclic
graphs", SIAM Journal on Scientific Computing 41(4), 2019. Clusters here are convex, but may lead to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import inf
from time import monotonic

from partitioner.planner.latency.homes import Homes
from partitioner.planner.throughput.first import SPARING, evened
from partitioner.planner.throughput.levels import PAIRS, ROUNDS, levels_of, refined
from partitioner.planner.throughput.mending import mended
from partitioner.planner.throughput.nearly import Nearly
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.search import Annealing, moment
from partitioner.planner.throughput.settling import settled
from partitioner.planner.throughput.units import Units

SIZES = (PAIRS, PAIRS._replace(fewest=10, largest=0.25))
"""Many small clusters, or few large ones."""

STEPS = 25
"""For each cluster, of each round towards a contiguous placement of them; half as many in each round after that."""

AGAIN = 750
"""Units from which each size is tried twice where time has no limit: which clusters end up where is chance."""


def in_parts(closed: Park, rules: Homes, bound: float, until: float) -> tuple[float, list[int]] | None:
    """The largest load, and the processor of each task, contiguous; ``None`` if nothing was found.

    Args:
        closed: units, each with all that lies between its tasks, and processors; contiguity is asked for.
        rules: where a task may go, contiguity left out.
        bound: seconds that no placement beats.
        until: moment, by the monotonic clock, at which units move no further; infinite: the answer is the same on every
            machine.
    """
    if closed.units.reach is None:
        return None
    known, began = [levels_of(closed, size) for size in SIZES], monotonic()
    seeds = 2 if until == inf and closed.units.count >= AGAIN else 1
    tries = [*product(range(seeds), range(len(SIZES)))]
    near, price = dict[tuple[int, int], list[int]](), closed.rents[0].tolist()
    for firm in (True, False) if closed.units.problem.crowded else (True,):
        found: list[tuple[float, int, list[int]]] = []
        for done, (seed, number) in enumerate(tries):
            top, now, soon = known[number][-1], monotonic(), moment(until, 2)
            if found and now + (now - began) / done > soon:  # a try that is cut short is worth less than units that settle
                break
            homes = near[seed, number] = near.get((seed, number)) or _near(top, rules, bound, moment(until, 3), seed)
            if (made := _tight(top, homes, price, bound, firm, soon, seed)) is not None:
                found.append((made[0], number, made[1]))
        if found:
            _, number, tasks = min(found)
            return refined(known[number], tasks, bound, until)
    return None


def _near(top: Park, rules: Homes, bound: float, until: float, seed: int) -> list[int]:
    """The processor of each cluster, contiguous or nearly so."""
    loose = park_of(Units(top.units.problem, False, top.units.unit_of))
    _, tasks = rules.run(partial(evened, loose, sparing=SPARING[0], full=bound))
    _, homes = settled(loose, loose.units.of_tasks(tasks), until)
    return Nearly(top, homes, seed).walk(until, STEPS * top.units.count)


def _tight(
    top: Park, homes: list[int], price: Sequence[float], bound: float, firm: bool, until: float, seed: int
) -> tuple[float, list[int]] | None:
    """The largest load, and the processor of each task, of clusters that are contiguous; ``None`` if none were found."""
    tight = mended(top, homes, price, firm, until)
    if tight is None:
        return None
    search = Annealing(top, settled(top, tight, until)[1], seed)
    search.run(until, ROUNDS, STEPS * top.units.count // 2, bound)
    return (search.least, top.units.spread_over(search.best)) if search.least < inf else None
