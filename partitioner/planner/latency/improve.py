"""Local search from several schedules: all get some moves, the better half of them more, until one is left.

    by mean rank            118.6  ->  112.0  ->  out
    in strips               123.0  ->  116.9  ->  out
    sparing processors      109.9  ->  106.4  ->  104.1  ->  103.0
    sparing, by least rank  108.4  ->  107.7  ->  104.9  ->  out

Which start is good is seen after a few moves and not before: the best list schedule is seldom the one that most is made of.

Source: Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013 (sequential halving).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from time import perf_counter

from partitioner.ir.problem import Problem
from partitioner.planner.latency.moves import Moves
from partitioner.planner.latency.quick import Quick
from partitioner.planner.latency.tabu import reordered, searchable
from partitioner.planner.latency.tries import Found
from partitioner.planner.latency.walk import Walk
from partitioner.planner.throughput.hulls import MOST_FOR_CLOSURE
from partitioner.planner.timing import timed

MOVED_IN_ALL, MOST_MOVED = 60_000, 200
"""Tasks that a few moves for one problem time together, three times more where processors stand still while values travel, two
where they travel beside tasks, or nothing travels and parts are contiguous, five where memory is scarce and most find no room
(one, where parts are contiguous: each takes several looks for room itself); and the largest problem that gets any."""

EACH = 1_000
"""Moves for each task beyond which these are no more: a few tasks have not so many schedules."""

UNCOUNTED = 10**9
"""Moves that nobody makes: time ends the search."""

WALKED, STEPS = 0.5, 20_000
"""Part of the time in which tasks move at random, where tabu search has the rest; and its steps for one problem, times its
tasks, where they are counted."""

ENOUGH = 120
"""Moves for each start, of which it has a quarter before it is seen what it is good for."""

TRAVELLED = 480
"""Likewise, where values travel and moves are counted: there starts are far apart, and few moves say little of them."""

FURTHER = 1200
"""Likewise, where the best start has been searched from already: to come near it others need as many."""


def improved(
    problem: Problem, known: Sequence[Found], least: float, until: float, seed: int, most: int = UNCOUNTED, share: int = ENOUGH
) -> Found:
    """A schedule that is no worse than the best of those that are known.

    Args:
        problem: what is scheduled.
        known: where to begin, the best first.
        least: seconds that no schedule beats: nothing is left to do there.
        until: when to stop, on `time.perf_counter`.
        seed: of all that is left to chance.
        most: moves, in all.
        share: moves for each start, about; with fewer in all there are fewer starts.
    """
    count, now, counted = len(problem.tasks), perf_counter(), most < UNCOUNTED
    if count < 2 or len(problem.lanes) < 2 or (problem.contiguous and count > MOST_FOR_CLOSURE):
        return known[0]
    if not searchable(problem):
        return _walked(problem, known, least, until, seed, most, share)
    if not _given(problem):
        soon = until if counted else now + WALKED * (until - now)
        known = [_walked(problem, known, least, soon, seed, most, share)]
    return reordered(problem, known[0], least, until, seed, STEPS // count if counted else UNCOUNTED)


def _given(problem: Problem) -> bool:
    """Whether each task has one lane, and only orders are left to be found."""
    return all(len(able) == 1 and problem.processors[able[0]].lanes == 1 for able in problem.able.values())


def _walked(problem: Problem, known: Sequence[Found], least: float, until: float, seed: int, most: int, share: int) -> Found:
    """Likewise, by moves at random from several schedules."""
    look = Quick(problem)
    moves = Moves(look, Random(seed), bold=most < UNCOUNTED)
    began = perf_counter()
    walks = [Walk(look, moves, known[0])]
    now = perf_counter()
    enough = min(most, int(2 * (until - now) / max(1e-9, now - began)) if until < inf else most)
    walks += [Walk(look, moves, each) for each in known[1 : enough // share]]
    walk = _halved(walks, least, until, most)
    if walk.best.seconds >= known[0].seconds:
        return known[0]
    order, ahead = look.standing.apart(walk.best.order, walk.best.lanes) if look.standing else (walk.best.order, {})
    clock = timed(problem, walk.best.lanes, order, ahead=ahead)
    found = Found.of(clock, order, f"{walk.rank}, and local search", ahead)
    return min(found, known[0], key=lambda each: each.seconds)


def _halved(walks: list[Walk], least: float, until: float, most: int) -> Walk:
    """The walk that is left when, in each round, the better half of them goes on. Every round takes the same time."""
    rounds = len(walks).bit_length()
    for left in range(rounds, 0, -1):
        began = perf_counter()
        for number, walk in enumerate(walks, start=1):
            stop = began + (until - began) / left * number / len(walks)
            if walk.run(least, stop, most // (rounds * len(walks))).seconds <= least * (1 + 1e-9):
                return walk
        walks = sorted(walks, key=lambda each: each.best.seconds)[: max(1, len(walks) // 2)]
    return walks[0]


def soon_improved(problem: Problem, known: Sequence[Found], least: float, until: float = inf) -> Found:
    """Likewise, after as many moves as milliseconds allow: counted, to be the same on every machine; and until it is late."""
    count = max(1, len(problem.tasks))
    if count > MOST_MOVED or known[0].seconds <= least * (1 + 1e-9):
        return known[0]
    beside = problem.overlap and not problem.fetched and problem.travels
    parts = problem.contiguous and not problem.travels and not problem.crowded
    times = 1 + 2 * (beside or parts) + 3 * problem.stands + (1 if problem.contiguous else 5) * problem.crowded
    share = TRAVELLED if problem.travels else ENOUGH
    return improved(problem, known, least, until, seed=0, most=min(times * MOVED_IN_ALL // count, EACH * count), share=share)
