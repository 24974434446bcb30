"""Where a search with a limit of time begins: the best of several quick placements or, if none fits, anything that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic

from partitioner.errors import PlacementError
from partitioner.planner.feasible import remedy
from partitioner.planner.latency.homes import Homes, closed
from partitioner.planner.throughput.first import sparings
from partitioner.planner.throughput.fitting import anywhere, fitting
from partitioner.planner.throughput.gather import gathered
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.levels import clustered
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.settling import evenly
from partitioner.planner.throughput.staging import staged

MOST_IDEALS = 4_000
"""Down-closed sets of units up to which the best contiguous stages are found."""

CLOSE = 1e-9
"""A bound and a load that differ by less, relatively, are equal."""


def start(park: Park, soon: float, bound: float, until: float, known: Sequence[list[int]] = ()) -> list[int]:
    """The processor of each unit: stages, or tasks that are placed one by one or in clusters.

    Args:
        park: what is placed.
        soon: moment, by the monotonic clock, up to which there are stages along further orders.
        bound: seconds that no placement beats; one that is there is returned at once.
        until: moment at which to stop.
        known: placements that others have found; those that are not valid for these units are left out.

    Raises:
        PlacementError: none was found that fits.
    """
    best, least = None, inf
    for homes in (*known, staged(park, soon, MOST_IDEALS, bound)):
        if homes is not None and park.units.valid(homes) and (load := Loads(park, homes).largest) < least:
            best, least = homes, load
    gathered_already = bool(known and park.waste)
    late = soon + (until - soon) / 3
    for make in () if park.units.contiguous and gathered_already else _makes(park, bound, late):
        if least <= bound * (1 + CLOSE) or (best is not None and monotonic() > late):
            break
        with suppress(PlacementError):
            homes = park.units.of_tasks(make()[1])
            load = Loads(park, homes).largest
            if park.units.valid(homes) and load < least:
                best, least = homes, load
    return _fitting(park, until) if best is None else best


def _makes(park: Park, bound: float, until: float) -> list[Callable[[], tuple[float, list[int]]]]:
    """Ways to the processor of each task, the most promising first."""
    if park.units.contiguous:
        return [lambda: gathered(_apart(park), bound, until, few=0)]
    rules = Homes(park.units.problem)
    return [
        partial(clustered, park, rules, bound, until),
        *(partial(evenly, park, rules, each, bound, until) for each in sparings(park)),
    ]


def _apart(park: Park) -> Park:
    """The processors and, as units, the groups that contiguity makes."""
    return park_of(units_of(closed(park.units.problem), contiguous=False))


def _fitting(park: Park, until: float) -> list[int]:
    """Any placement that fits.

    Raises:
        PlacementError: there is none, or none was found.
    """
    found = anywhere(park.units.problem)
    if found.homes is not None:
        return park.units.of_tasks(found.homes)
    if not found.complete and monotonic() < until:
        found = fitting(park, until)
    if found.homes is None:
        raise PlacementError(none_found(park, "There is no placement" if found.complete else "No placement was found"))
    return found.homes


def none_found(park: Park, what: str) -> str:
    """Says that there is no placement, or that none was found, and what was asked for."""
    problem = park.units.problem
    rule = ", with no path that leaves a device and comes back" if park.units.contiguous else ""
    caps = ", ".join(f"{each.name} {each.memory:.6g}" for each in problem.processors[:8])
    return (
        f"{what} of the {len(problem.tasks)} tasks of {problem.name} that meets pins, colocations and memory caps{rule}: "
        f"{sum(problem.memory):.6g} bytes are to be held; caps: {caps}. {remedy(problem)}"
    )
