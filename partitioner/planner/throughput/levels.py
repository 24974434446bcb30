"""Units in clusters first, then the clusters' units, and so on: what belongs together goes to one of several equal processors.

    units      a-b=c-d   e=f-g=h       a thousand, of which no price says to which of two equal processors each goes
    clusters   a   bc  d ef  gh        those that exchange most, in twos and threes, and clusters of these, while there are many
    placed     abcd | efgh             annealed while they are few; each level settles from where the one above it has ended

Sources: Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM Journal on
Scientific Computing 20(1), 1998 (refinement level by level), and "Multilevel k-way hypergraph partitioning", DAC 1999 (first
choice: a unit joins the one it is closest to, even if that has joined another).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from partitioner.errors import PlacementError
from partitioner.planner.latency.homes import Homes
from partitioner.planner.throughput.first import SPARING, evened
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.search import Annealing
from partitioner.planner.throughput.settling import settled


class Coarsening(NamedTuple):
    """How units become clusters.

    Args:
        fewest: clusters for each processor, about, at which to stop.
        largest: part of a processor's mean work that a cluster may have at most.
        together: units that become one at once, at most.
        weak: part of a unit's closest tie below which it rather stays alone.
    """

    fewest: int
    largest: float
    together: int
    weak: float


BLOCKS = Coarsening(fewest=2, largest=0.5, together=3, weak=0.25)
"""First choice, down to a few clusters: of what exchanges much within and little between, each is found whole."""

PAIRS = Coarsening(fewest=20, largest=0.1, together=2, weak=0.0)
"""Matching, down to many small clusters, which fill unlike processors more evenly. It is also all that convex clusters allow:
what lies between keeps most units apart from what is closest to them."""

MANY = 20
"""Clusters for each processor of which there are too many for annealing."""

ROUNDS, MOVES, STEPS = 4, 2_000, 25
"""Of annealing with few clusters; moves of each round, at most, and for each cluster."""

ENOUGH = 0.95
"""Clusters, as a part of those before, from which on there is no coarser level."""


def clustered(park: Park, rules: Homes, bound: float, until: float, coarsening: Coarsening = BLOCKS) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task, contiguous or not.

    Args:
        park: groups as units, and processors.
        rules: where a task may go.
        bound: seconds that no placement beats.
        until: moment, by the monotonic clock, at which to stop.
        coarsening: how clusters are made.

    Raises:
        PlacementError: memory is scarce, which clusters do not look at.
    """
    if rules.problem.crowded:
        raise PlacementError("clusters are placed where memory suffices")
    levels = levels_of(park, coarsening)
    _, tasks = rules.run(partial(evened, levels[-1], sparing=SPARING[0] if park.waste else 0.0, full=bound))
    return refined(levels, tasks, bound, until, MOVES)


def refined(levels: Sequence[Park], tasks: list[int], bound: float, until: float, moves: int = 0) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task, when units have settled, level by level from the coarsest one.

    Args:
        levels: the finest one first.
        tasks: the processor of each task, to begin with.
        bound: seconds that no placement beats.
        until: moment, by the monotonic clock, at which to stop.
        moves: how many of each round the coarsest level is annealed with, and others that are not `MANY`.
    """
    load, many = inf, MANY * len(levels[0].units.rows)
    for level in reversed(levels):
        load, homes = settled(level, level.units.of_tasks(tasks), until)
        if moves and (level is levels[-1] or level.units.count <= many):
            search = Annealing(level, homes)
            search.run(until, ROUNDS, min(moves, STEPS * level.units.count), bound)
            load, homes = search.least, search.best
        tasks = level.units.spread_over(homes)
    return load, tasks


def levels_of(park: Park, coarsening: Coarsening, label: Sequence[tuple[int, int]] = ()) -> list[Park]:
    """Ever fewer clusters of the units, each of some with the same label.

    Args:
        park: units, of which convex clusters are made if contiguity is asked for, and processors.
        coarsening: how clusters are made.
        label: of each task; if there are none, on which processors it runs, and the kind on which it pays least.
    """
    of_task, found, many = label or _suiting(park), [park], coarsening.fewest * len(park.units.rows)
    while (units := found[-1].units).count > many:
        coarse = units.joined(_joined(found[-1], [of_task[tasks[0]] for tasks in units.members], coarsening))
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


def _joined(park: Park, label: Sequence[tuple[int, int]], by: Coarsening) -> list[int]:
    """For each unit, the one whose cluster it is in: with its label, and near the one it exchanges most with for their work.

    A unit whose neighbours are all taken joins one of these if more than two may be together, for what it exchanges little with
    belongs elsewhere.
    """
    units, reach = park.units, park.units.reach
    work: list[float] = units.seconds.min(axis=0).tolist()
    most, root = by.largest * sum(work) / len(units.problem.processors), list(range(units.count))
    weight = [max(1e-300, each) ** 0.5 for each in work]
    inside, moved = [[unit] for unit in root], _exchanged(park)
    for unit in sorted(root, key=lambda each: (len(moved[each]), work[each])):
        if len(inside[unit]) > 1 or root[unit] != unit:
            continue
        near = sorted(((-seconds / weight[each], each) for each, seconds in moved[unit].items()))
        for tie, each in near:
            if tie > by.weak * near[0][0]:
                break
            there = root[each]
            fits = label[each] == label[unit] and work[there] + work[unit] <= most and len(inside[there]) < by.together
            if fits and (reach is None or not reach.between((*inside[there], unit))):
                root[unit] = there
                inside[there].append(unit)
                work[there] += work[unit]
                break
    return root


def _exchanged(park: Park) -> list[defaultdict[int, float]]:
    """For each unit, the seconds that its values take, or those that it reads, by the unit at the other end."""
    found: list[defaultdict[int, float]] = [defaultdict(float) for _ in range(park.units.count)]
    for flow, seconds in zip(park.units.flows, park.flow_seconds(*park.classes[0].sends).tolist(), strict=True):
        for reader in flow.readers:
            found[flow.maker][reader] += seconds / len(flow.readers)
            found[reader][flow.maker] += seconds / len(flow.readers)
    return found
