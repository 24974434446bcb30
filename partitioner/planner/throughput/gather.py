"""Contiguous parts where processors differ: tasks are placed where they suit, and what is then scattered is gathered.

    on its own       a x | b y | c x | d y | e x        each where it is fast; d lies between c and e
    mended           a x | b y | c x | d x | e x        nothing lies between
    gathered order   a c | b d | e                      topological, what shares a processor side by side
    stages           a c e (with d)  | ...              the best cuts of that order, by dynamic programming

Stages along an order that knows nothing of processors put tasks where they are slow, and no search gets out of that by moves.

Source of orders from which acyclic parts are cut: Moreira, Popp and Schulz, "Graph partitioning with acyclicity constraints",
SEA 2017.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from partitioner.errors import PlacementError
from partitioner.planner.latency.homes import Homes
from partitioner.planner.throughput.blocks import blocks
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.ideals import ideals
from partitioner.planner.throughput.levels import BLOCKS, PAIRS, clustered
from partitioner.planner.throughput.mending import mended
from partitioner.planner.throughput.parts import in_parts
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.search import moment
from partitioner.planner.throughput.settling import evenly, settled
from partitioner.planner.throughput.staging import along
from partitioner.planner.throughput.units import Units

SPARING = 256.0
"""How many times what a task wastes counts, as in `first.SPARING`: for more than even loads, which the cuts see to."""

MOST_RUNS = 8
"""Times that each processor may begin anew in the gathered order: beyond, little was gathered, and no cuts are looked for."""

FEW_IDEALS = 1_000
"""See `gathered`; 0 where a search goes on from its answer."""

NEARLY = 2e-4
"""What a load may be above the bound, relatively, for nothing else to be looked for."""


def gathered(
    park: Park, bound: float, until: float = inf, few: int = FEW_IDEALS, parts: bool = True
) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task, near a placement that need not be contiguous.

    Either that is mended, and its parts may even lead to each other, as those of stages cannot; or stages are cut along the
    order in which what shares a processor stands together.

    Args:
        park: groups as units, whatever contiguity makes of them.
        bound: seconds that no answer can beat, where to begin to look.
        until: moment, by the monotonic clock, at which to stop; infinite: the answer is the same on every machine.
        few: down-closed sets of units up to which parts are not worth their second: the best stages are found (`staging.py`).
        parts: whether convex clusters are placed, too, if there are more (`parts.py`).

    Raises:
        PlacementError: no placement or no stages were found.
    """
    problem, found = park.units.problem, list[tuple[float, list[int]]]()
    rules, closed = Homes(replace(problem, contiguous=False)), park_of(units_of(problem, contiguous=True))
    whole = park_of(blocks(park.units))
    for loose in _loose(park, rules, bound, until):
        found += _mended(closed, loose, bound, until)
        if found and min(found)[0] <= bound * (1 + NEARLY):
            return min(found)
        order = _gathering(whole.units, loose)
        if not order and problem.crowded and not park.apart:
            order = _gathering(whole.units, _regardless(park, bound, moment(until, 4)))
        if order:
            line = along(whole, order, bound, min(found, default=(inf,))[0], moment(until, 3))
            found += [] if line is None else [(line[0], whole.units.spread_over(line[1]))]
    if parts and (problem.crowded or not park.apart) and ideals(whole.units, few) is None:
        parts_of = in_parts(closed, rules, bound, until)
        found += [] if parts_of is None else [parts_of]
    if not found:
        raise PlacementError("No contiguous parts were found near a placement that is not contiguous.")
    return min(found)


def _loose(park: Park, rules: Homes, bound: float, until: float) -> Iterator[list[int]]:
    """Placements that need not be contiguous; of clusters made in one way or two, where prices tell no processors apart."""
    if park.units.problem.crowded or park.apart:
        yield evenly(park, rules, SPARING if park.units.problem.crowded else inf, bound, until)[1]
        return
    for coarsening in (PAIRS, BLOCKS) if park.waste else (BLOCKS,):
        yield clustered(park, rules, bound, moment(until, 3), coarsening)[1]


def _mended(closed: Park, loose: Sequence[int], bound: float, until: float) -> list[tuple[float, list[int]]]:
    """The largest load, and the processor of each task, of a placement in which nothing lies between any more; or nothing."""
    tight = mended(closed, closed.units.of_tasks(loose), closed.rents[0].tolist(), until=until)
    if tight is None or not closed.units.valid(tight):
        return []
    load, homes = settled(closed, tight, moment(until, 3))
    return [(load, closed.units.spread_over(homes))]


def _gathering(units: Units, tasks: Sequence[int]) -> list[int]:
    """An order in which most of a processor stands together; empty where little does."""
    near = units.of_tasks(tasks)
    order = guided(units, near)
    runs = sum(near[one] != near[other] for one, other in pairwise(order))
    return order if runs < MOST_RUNS * len(units.problem.processors) else []


def _regardless(park: Park, bound: float, until: float) -> list[int]:
    """The processor of each task, in clusters, whatever memory there is: cuts of an order keep it.

    Placed one by one under tight memory, neighbours go to any of several equal processors.
    """
    free = replace(park.units.problem, memory=(), contiguous=False)
    return clustered(park_of(units_of(free, contiguous=False)), Homes(free), bound, until)[1]


def guided(units: Units, homes: Sequence[int]) -> list[int]:
    """A topological order in which units of one processor stand together, as far as they can.

    Where none of the last one's is ready, that processor is next of which most can be done without any other: of contiguous
    parts, a whole one.

    Args:
        units: units that make no cycle.
        homes: the processor of each unit, contiguous or not.
    """
    waiting, left = [0] * units.count, defaultdict[int, float](float)
    for unit, followers in enumerate(units.after):
        left[homes[unit]] += units.rows[homes[unit]][unit]
        for follower in followers:
            waiting[follower] += 1
    ready: defaultdict[int, list[int]] = defaultdict(list)
    for unit in range(units.count):
        if not waiting[unit]:
            ready[homes[unit]].append(unit)
    found: list[int] = []
    while len(found) < units.count:
        runs = {home: _run(units, homes, waiting, first) for home, first in ready.items() if first}
        share = {home: sum(units.rows[home][unit] for unit in run) / max(left[home], 1e-300) for home, run in runs.items()}
        home = max(share, key=share.__getitem__)
        found += runs[home]
        left[home] *= 1 - share[home]
        ready[home] = []
        for unit in runs[home]:
            for follower in units.after[unit]:
                waiting[follower] -= 1
                if not waiting[follower] and homes[follower] != home:
                    ready[homes[follower]].append(follower)
    return found


def _run(units: Units, homes: Sequence[int], waiting: Sequence[int], ready: Sequence[int]) -> list[int]:
    """What one processor can do from now on before another one does anything, in an order."""
    run, freed = list(ready), defaultdict[int, int](int)
    for unit in run:  # grows while it is read
        for follower in sorted(units.after[unit]):
            if homes[follower] == homes[unit]:
                freed[follower] += 1
                if freed[follower] == waiting[follower]:
                    run.append(follower)
    return run
