"""Contiguous stages of a problem: over all ideals where they are few, over several orders of the units where they are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from time import monotonic

import numpy as np

from partitioner.planner.throughput.blocks import blocks
from partitioner.planner.throughput.fitting import filled
from partitioner.planner.throughput.ideals import IdealCuts, ideals
from partitioner.planner.throughput.line import LineCuts, Rectangles, rectangles
from partitioner.planner.throughput.orders import orders
from partitioner.planner.throughput.prices import Park, park_of
from partitioner.planner.throughput.stages import Numbers, best_stages, placed_stages, states_of
from partitioner.planner.timing import largest_load

MOST_POINTS = 1_200
"""Cut points of an order that are looked at together; of longer orders some, and then those near the best ones."""

MOST_REACHED, FEWEST_POINTS = 60_000, 150
"""Cut points, each with every way to have used processors, that are looked at together; and how few cut points these may be."""

EACH, MOST_FOR_EACH = 8, 4 * MOST_REACHED
"""Cut points for each stage, if no more are reached than these: of fewer, cuts of one long stage have nowhere to go."""

DRIFT = 1e-3
"""A gain, relatively, after which cut points of the same fineness are moved once more before finer ones are looked at."""

ORDERS = 12
"""Orders that are tried, as time allows."""

SLACKS, FAR = (1.05, 1.3, 2.0, 8.0), 0.9
"""Times the bound that the largest load may be, by turns, and the part of a known answer's load below which none is tried."""

MANY = 30_000
"""Units above which one order is enough work."""


def staged(
    park: Park,
    until: float,
    most_ideals: int,
    bound: float = 0.0,
    most_orders: int = ORDERS,
    limit: float = inf,
    near: float = 1e-9,
) -> list[int] | None:
    """The processor of each unit, in contiguous stages; ``None`` if none were found that fit.

    Args:
        park: what is placed.
        until: moment, by the monotonic clock, after which nothing further is tried; one order is, in any case.
        most_ideals: of more down-closed sets of units than these, only orders are looked at.
        bound: seconds that no answer can beat, where to begin to look.
        most_orders: orders that are tried.
        limit: the largest load of a known answer; worse ones need not be found.
        near: what an answer may be above the bound, relatively, for nothing further to be tried.
    """
    units = park.units
    whole, best, least = blocks(units), None, inf
    park = park if whole is units else park_of(whole)
    for homes in _answers(park, until, most_ideals, bound, most_orders, limit):
        tasks = whole.spread_over(homes)
        load = largest_load(units.problem, tasks)
        if best is None or load < least * (1 - 1e-12):
            best, least = tasks, load
        if least <= bound * (1 + near):
            break
    return None if best is None else units.of_tasks(best)


def _answers(park: Park, until: float, most_ideals: int, bound: float, most_orders: int, least: float) -> Iterator[list[int]]:
    """Ever better stages, by what they are thought to cost; the first ones of several orders, the last ones of all ideals."""
    for number, order in enumerate(islice(orders(park.units), most_orders if park.units.count <= MANY else 1)):
        if number and monotonic() > until:
            break
        found = along(park, order, bound, least, until if number else inf)
        if found is not None:
            least = min(least, found[0])
            yield found[1]
        elif (full := filled(park.units, order)) is not None:
            yield full
    few = ideals(park.units, most_ideals) if monotonic() < until else None
    if few is not None:
        cuts = IdealCuts(park, few)
        best = best_stages(cuts, park.classes, least * (1 - 1e-12), until)
        if best is not None:
            yield placed_stages(park, cuts, best[1])


def along(
    park: Park, order: Sequence[int], bound: float, limit: float = inf, until: float = inf
) -> tuple[float, list[int]] | None:
    """The best stages along an order, no worse than ``limit``: of a long one, between coarse cut points, then finer ones.

    Those that are known when it is ``until``, by the monotonic clock, are the best.
    """
    known, count = rectangles(park.units, order), len(order)
    states, stages = states_of(park.classes).count, sum(len(each.processors) for each in park.classes)
    most = min(MOST_POINTS, max(FEWEST_POINTS, MOST_REACHED // states, min(EACH * stages, MOST_FOR_EACH // states)))
    step = max(1, -(-count // most))
    points = np.append(np.arange(0, count, step), count)
    found = _within(park, order, known, points, bound, limit if step == 1 else inf, limit, until)
    gain = 0.0
    while found is not None and (step > 1 or gain > DRIFT):
        chosen = found[2]
        step = step if gain > DRIFT else max(1, step // 4)
        reach = max(1, min(4, most // (2 * len(chosen))))
        near = (chosen[:, None] + step * np.arange(-reach, reach + 1)).ravel()
        points = np.unique(np.concatenate([[0, count], chosen, near[(near > 0) & (near < count)]]))
        finer = _within(park, order, known, points, bound, found[0], found[0], until)
        gain = 0.0 if finer is None else 1.0 - finer[0] / max(found[0], 1e-300)
        found = found if finer is None else finer
    return None if found is None else found[:2]


def _within(
    park: Park, order: Sequence[int], known: Rectangles, points: Numbers, bound: float, limit: float, like: float, until: float
) -> tuple[float, list[int], Numbers] | None:
    """The best stages between some cut points: their load, the processor of each unit and the cut points that they use.

    They are looked for below ever larger loads: few stages are that short. No load is tried that is far below that of an answer
    which is known (``like``), for then there are mostly none.
    """
    cuts = LineCuts(park, order, known, points)
    tried = [bound * slack for slack in SLACKS if like == inf or bound * slack > FAR * like]
    for most in (*(each for each in tried if 0 < each < limit), limit):
        found = best_stages(cuts.again(), park.classes, most, until)
        if found is not None:
            used = np.array([points[last] for _, last, _ in found[1]], dtype=np.int64)
            return found[0], placed_stages(park, cuts, found[1]), used
    return None
