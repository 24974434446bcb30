"""Units in clusters first, then the clusters' units, and so on: what belongs together goes to one of several equal processors.

    units      a-b=c-d   e=f-g=h       a thousand, of which no price says to which of two equal processors each goes
    clusters   a   bc  d ef  gh        those that exchange most, in pairs, and pairs of pairs, while there are many
    placed     abcd | efgh             few enough for annealing; each level settles from where the one above it has ended

Source: Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM Journal on
Scientific Computing 20(1), 1998 (heavy-edge matching, and refinement level by level).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import inf

from partitioner.errors import PlacementError
from partitioner.planner.latency.homes import Homes
from partitioner.planner.throughput.first import SPARING, evened
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.search import Annealing
from partitioner.planner.throughput.settling import settled

FEWEST = 20
"""Clusters for each processor, about, that are placed first."""

LARGEST = 0.1
"""Part of a processor's mean work that a cluster may have at most."""

ROUNDS, MOVES = 4, 2_000
"""Of annealing with the first clusters."""

ENOUGH = 0.95
"""Clusters, as a part of those before, from which on there is no coarser level."""


def clustered(park: Park, rules: Homes, bound: float, until: float) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task, contiguous or not.

    Args:
        park: groups as units, and processors.
        rules: where a task may go.
        bound: seconds that no placement beats.
        until: moment, by the monotonic clock, at which to stop.

    Raises:
        PlacementError: memory is scarce, which clusters do not look at.
    """
    if rules.problem.crowded:
        raise PlacementError("clusters are placed where memory suffices")
    levels = levels_of(park)
    _, tasks = rules.run(partial(evened, levels[-1], sparing=SPARING[0] if park.waste else 0.0, full=bound))
    return refined(levels, tasks, bound, until, MOVES)


def refined(levels: Sequence[Park], tasks: list[int], bound: float, until: float, moves: int = 0) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task, when units have settled, level by level from the coarsest one.

    Args:
        levels: the finest one first.
        tasks: the processor of each task, to begin with.
        bound: seconds that no placement beats.
        until: moment, by the monotonic clock, at which to stop.
        moves: how many of each round the coarsest level is annealed with.
    """
    load = inf
    for level in reversed(levels):
        load, homes = settled(level, level.units.of_tasks(tasks), until)
        if moves and level is levels[-1]:
            search = Annealing(level, homes)
            search.run(until, ROUNDS, moves, bound)
            load, homes = search.least, search.best
        tasks = level.units.spread_over(homes)
    return load, tasks


def levels_of(park: Park, fewest: int = FEWEST, largest: float = LARGEST, label: Sequence[tuple[int, int]] = ()) -> list[Park]:
    """Ever fewer clusters of the units, each of some with the same label.

    Args:
        park: units, of which convex clusters are made if contiguity is asked for, and processors.
        fewest: clusters for each processor, about, at which to stop.
        largest: part of a processor's mean work that a cluster may have at most.
        label: of each task; if there are none, on which processors it runs, and the kind on which it pays least.
    """
    of_task, found, many = label or _suiting(park), [park], fewest * len(park.units.rows)
    while (units := found[-1].units).count > many:
        coarse = units.joined(_matched(found[-1], [of_task[tasks[0]] for tasks in units.members], largest))
        if coarse.count > ENOUGH * units.count:
            break
        found.append(park_of(coarse))
    return found


def _suiting(park: Park) -> list[tuple[int, int]]:
    """For each task, the kind on which its unit pays least, and on which processors it runs."""
    kinds = {id(row): kind for kind, row in enumerate(park.units.rows)}
    kind = [kinds[id(row)] for row in park.units.rows]
    cheapest = park.paid.argmin(axis=0).tolist()
    label = [(kind[each], id(able)) for each, able in zip(cheapest, park.units.able_sets, strict=True)]
    return [label[unit] for unit in park.units.unit_of]


def _matched(park: Park, label: Sequence[tuple[int, int]], largest: float) -> list[int]:
    """For each unit, its name or its partner's: of those with its label, the one it exchanges most with for their work."""
    least, units, reach = park.units.seconds.min(axis=0).tolist(), park.units, park.units.reach
    most, mate = largest * sum(least) / len(units.problem.processors), [-1] * units.count
    moved: list[defaultdict[int, float]] = [defaultdict(float) for _ in mate]
    for flow, seconds in zip(units.flows, park.flow_seconds(*park.classes[0].sends).tolist(), strict=True):
        for reader in flow.readers:
            moved[flow.maker][reader] += seconds / len(flow.readers)
            moved[reader][flow.maker] += seconds / len(flow.readers)
    for unit in sorted(range(units.count), key=lambda each: (len(moved[each]), least[each])):
        if mate[unit] < 0:
            mate[unit] = unit
            near = [each for each in moved[unit] if mate[each] < 0 and label[each] == label[unit]]
            near = [each for each in near if least[each] + least[unit] <= most]
            for each in sorted(near, key=lambda each: (-moved[unit][each] / max(1e-300, least[each] ** 0.5), each)):
                if reach is None or not reach.between((unit, each)):
                    mate[each] = unit
                    break
    return mate
