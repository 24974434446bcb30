"""Seconds that no schedule can beat where processors stand still while they send and receive: what must travel is work, too.

    a 2 on p, 9 elsewhere       a and b together: 9 + 3, or 2 + 9; apart: 2 + 3 of work, and the passage of a's value
    b 3 on q, 9 elsewhere       holds p and q for 1 each, so at a price of a half, 3.5 seconds is the least

At any prices of the processors' time that add up to 1, no schedule does more than one priced second of work in a second. What
each task costs on each processor, and each pair of a maker and a reader by where both are, is a pairwise model; a bound of its
least comes of shifting costs between tasks and pairs until they agree where they are least.

Source: Werner, "A linear programming approach to max-sum problem: a review", IEEE TPAMI 29(7), 2007 (max-sum diffusion).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.problem import Problem
from partitioner.planner.prices import Table, able_seconds, lane_counts, lane_prices

Numbers = NDArray[np.int64]

MOST_ROUNDS, IN_ALL = 20, 1_000_000
"""Rounds of shifting costs, and pairs of processors that they look at together, for all pairs of tasks: some milliseconds."""

FEWEST_ROUNDS = 5
"""Fewer are not begun."""


@dataclass(frozen=True)
class Pairs:
    """Groups that differ, of which one makes what a task of the other reads.

    Args:
        maker: number of the first, for each pair.
        reader: number of the second.
        size: bytes of the value.
        value: its number.
    """

    maker: Numbers
    reader: Numbers
    size: Table
    value: Numbers


def passage_bound(problem: Problem) -> float:
    """The least priced work of all tasks and passages; 0 where nothing stands still, all is the same, or it would take long."""
    if problem.overlap or problem.fetched or not problem.channels or (problem.alike and not problem.pin):
        return 0.0
    pairs, count = _pairs(problem), len(problem.processors)
    rounds = min(MOST_ROUNDS, IN_ALL // max(1, len(pairs.size) * count * count))
    if rounds < FEWEST_ROUNDS or not len(pairs.size):
        return 0.0
    seconds = able_seconds(problem)
    table = np.array([seconds[:, tasks].sum(axis=1) for tasks in problem.members.values()])
    even = np.full(count, 1.0 / lane_counts(problem).sum())
    return max(_least(problem, table, pairs, price, rounds) for price in (even, lane_prices(problem)))


def _pairs(problem: Problem) -> Pairs:
    number = {group: place for place, group in enumerate(problem.members)}
    node = [number[group] for group in problem.group_of]
    found = [
        (node[maker], there, size, value)
        for value, ((maker, size), readers) in enumerate(zip(problem.values, problem.readers, strict=True))
        for there in dict.fromkeys(node[reader] for reader in readers)
        if there != node[maker]
    ]
    maker, reader, sizes, value = np.array(found, dtype=float).reshape(-1, 4).T
    return Pairs(maker.astype(int), reader.astype(int), sizes, value.astype(int))


def _least(problem: Problem, table: Table, pairs: Pairs, price: Table, rounds: int) -> float:
    """A bound of what everything costs at these prices: ``table`` is seconds by group and processor."""
    own = table * price
    pair = _costs(problem, pairs, price, own.argmin(axis=1))
    finite = np.where(np.isfinite(own), own, 0.0)
    own = np.where(np.isfinite(own), own, finite.max(axis=1).sum() + pair.max(axis=(1, 2)).sum())  # more than any answer
    degree = np.bincount(pairs.maker, minlength=len(own)) + np.bincount(pairs.reader, minlength=len(own))
    alone, parts, best = degree == 0, np.maximum(degree, 1)[:, None], 0.0
    for _ in range(rounds):
        share = own / parts
        whole = pair + share[pairs.maker][:, :, None] + share[pairs.reader][:, None, :]
        from_, to = whole.min(axis=2) / 2, whole.min(axis=1) / 2
        pair = whole - from_[:, :, None] - to[:, None, :]
        own = np.where(alone[:, None], own, 0.0)
        np.add.at(own, pairs.maker, from_)
        np.add.at(own, pairs.reader, to)
        best = max(best, float(own.min(axis=1).sum()))
    return best * (1 - 1e-9)


def _costs(problem: Problem, pairs: Pairs, price: Table, home: Numbers) -> Table:
    """By pair, and by where its maker and its reader are: its part of the priced seconds that the value holds lanes.

    A value goes over a channel once, whoever reads it behind that. So its readers share what that costs: those that rather are
    there, where the channel leads to one processor only; otherwise those that rather are somewhere else than the maker.
    """
    count, lanes = len(problem.processors), [each.lanes for each in problem.processors]
    tables = np.zeros((4, count, count))  # of channels to one processor and to several: fixed seconds, seconds of a byte
    for here in range(count):
        routes = {there: set(problem.routes.get((here, there), ())) for there in range(count) if there != here}
        for there, route in routes.items():
            for each in route:
                channel, shared = problem.channels[each], sum(each in other for other in routes.values()) > 1
                held = sum(price[end] * lanes[end] for end in channel.ends)
                tables[2 * shared, here, there] += held * channel.latency
                tables[2 * shared + 1, here, there] += held / channel.bandwidth
    to_one = tables[0] + tables[1] * pairs.size[:, None, None]
    to_several = tables[2] + tables[3] * pairs.size[:, None, None]
    there = home[pairs.reader][:, None] == np.arange(count)
    away = (home[pairs.reader] != home[pairs.maker])[:, None]
    found: Table = to_one * _parts(there, pairs.value)[:, None, :] + to_several * _parts(away, pairs.value)[:, :, None]
    return found


def _parts(wanted: NDArray[np.bool_], value: Numbers) -> Table:
    """The part of each reader of a value, which add up to 1: of those that are wanted; where none is, of all."""
    counts = np.zeros((int(value.max()) + 1, wanted.shape[1]))
    np.add.at(counts, value, wanted)
    every = np.bincount(value)[:, None]
    return np.where(counts[value] > 0, wanted / np.maximum(counts[value], 1), 1.0 / every[value])
