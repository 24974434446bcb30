"""Any placement that keeps pins, groups, memory and contiguity, whatever it costs: an answer, or that there is none.

First fit by falling demand, which is nearly always enough, or one processor after the other, along an order or filled to the
last byte; then branch and bound; then, where it is installed, CP-SAT, which also finds out that there is no answer.

Source of first fit decreasing: Johnson, "Near-optimal bin packing algorithms", MIT, 1973.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import inf
from time import monotonic

from partitioner.ir.problem import ORDER, Problem
from partitioner.planner.once import once
from partitioner.planner.throughput import model
from partitioner.planner.throughput.blocks import blocks
from partitioner.planner.throughput.branch import Branching, Found
from partitioner.planner.throughput.first import by_size
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.orders import orders
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.subsets import filled_up
from partitioner.planner.throughput.units import Units

FEW = 2_000
"""Steps by which a placement that fits is mostly found if going on deeper finds one at all; then the solver is asked first."""

PATIENCE = 5.0
"""Seconds that are spent before it is said that nothing was found, whatever the limit of time is."""

ORDERS = 4
"""Orders along which processors are filled."""


def certificate(problem: Problem) -> dict[int, int] | None:
    """A processor for every group that keeps every rule; ``None`` if none was found. What travels is not looked at."""
    found = anywhere(problem).homes
    return None if found is None else dict(zip(problem.group_of, found, strict=True))


@once
def anywhere(problem: Problem) -> Found:
    """Likewise, for every task. Where it is hard to say whether there is one, that takes seconds, and every policy asks."""
    if not all(problem.able.values()):
        return Found(None, True)
    edges = [(source, target, ORDER) for source, target, _ in problem.edges]
    park = park_of(units_of(replace(problem, edges=edges, values=(), channels=(), routes={}), problem.contiguous))
    found = fitting(park, monotonic() + PATIENCE)
    return found if found.homes is None else replace(found, homes=park.units.spread_over(found.homes))


def fitting(park: Park, until: float) -> Found:
    """A placement that fits, if one is found; and whether, if none is, there is none.

    Args:
        park: units and processors.
        until: moment, by the monotonic clock, at which to stop.
    """
    for homes in chain(_packed(park), _filled(park.units), () if park.units.contiguous else filled_up(park)):
        if park.units.valid(homes):
            return Found(homes, False)
    searches: list[Callable[[], Found]] = [
        lambda: Branching(park, _topological(park.units)).search(until, first=True, steps=FEW),
        lambda: Branching(park, by_size(park)).search(until, first=True, steps=FEW),
        lambda: _modelled(park, until),
        lambda: Branching(park, _topological(park.units)).search(until, first=True),
        lambda: Branching(park, by_size(park)).search(until, first=True),
    ]
    for search in searches:
        found = search()
        if found.complete or (found.homes is not None and park.units.valid(found.homes)):
            return found
    return Found(None, False)


def _packed(park: Park) -> Iterator[list[int]]:
    """Largest demand first: to the first processor with room, or to that with the least or the most room left."""
    units, memory = park.units, park.units.memory.tolist()
    largest = sorted(range(units.count), key=lambda unit: (-memory[unit], len(units.able[unit])))
    scarce = sorted(largest, key=lambda unit: len(units.able[unit]))
    for order in () if units.contiguous else (largest, scarce):
        for rule in (0.0, 1.0, -1.0):
            room, homes = list(units.problem.caps), [-1] * units.count
            for unit in order:
                fits = [each for each in units.able[unit] if memory[unit] <= room[each]]
                if not fits:
                    break
                homes[unit] = best = min(fits, key=lambda each: rule * room[each])
                room[best] -= memory[unit]
            else:
                yield homes


def _filled(units: Units) -> Iterator[list[int]]:
    """For contiguity, one processor after the other with as much of an order as fits, the roomiest first."""
    whole = blocks(units)
    for order in islice(orders(whole), ORDERS) if units.contiguous else ():
        homes = filled(whole, order)
        if homes is not None:
            yield units.of_tasks(whole.spread_over(homes))


def filled(units: Units, order: Sequence[int]) -> list[int] | None:
    """One processor after the other, each with as much of an order as fits; ``None`` where some of it is left."""
    homes, waiting = [-1] * units.count, sorted((cap, number) for number, cap in enumerate(units.problem.caps))
    left, here = waiting.pop()
    for unit in order:
        while units.memory[unit] > left or units.rows[here][unit] == inf:
            if not waiting:
                return None
            left, here = waiting.pop()
        homes[unit] = here
        left -= units.memory[unit]
    return homes


def _topological(units: Units) -> list[int]:
    """The units, each after those that lead to it, as far as they can be put in an order."""
    whole = blocks(units)
    tasks = (task for block in next(orders(whole)) for task in whole.members[block])
    return list(dict.fromkeys(units.unit_of[task] for task in tasks))


def _modelled(park: Park, until: float) -> Found:
    if not (model.installed() and model.suits(park)) or monotonic() + model.start_up(park) > until:
        return Found(None, False)
    result = model.Model(park, inf).solve(max(1.0, until - monotonic()))
    return Found(result.homes or None, result.impossible)
