"""Where local search begins: schedules by rank, on the most even loads, and by beams.

by rank                118.6  112.0  ...
in strips              117.3  115.0          where parts are to be contiguous
on even loads          109.9  108.4          where tasks fit some processors better than others, or what travels is load, too
with little to send    112.4  107.2          where memory forces work apart, and values travel
by beams               104.1  100.9  ...     up to some hundred tasks, and where there is time for larger problems
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from time import monotonic, perf_counter

from partitioner.errors import PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.latency.beams import widened
from partitioner.planner.latency.clusters import clustered
from partitioner.planner.latency.crossings import crossed
from partitioner.planner.latency.homes import Homes
from partitioner.planner.latency.improve import improved, soon_improved
from partitioner.planner.latency.sites import Site, sites
from partitioner.planner.latency.strips import MOST_TRIED, in_strips
from partitioner.planner.latency.tries import Found, lumpy, settled, several, uneven
from partitioner.planner.latency.twins import twins
from partitioner.planner.throughput.solve import evenest, soon_balanced
from partitioner.planner.throughput.sparse import sparse

MOST_BEAMED, MOST_UNEVEN = 200, 500
"""The largest problem for which there are beams where there is no limit of time: they take a hundred milliseconds there; and
one where processors differ and nothing travels: list schedules have gaps there. Tasks that cannot be told apart are one."""

EVENING, AGAIN = 1e-3, 0.04
"""Seconds for each task that must be left for even loads, or for what has no regard for memory, to be looked for; and once
more, where there are answers that have begun there."""

FULL = 1.1
"""How many times the bound an answer may take for beams to be made again: further above it, gaps are not what costs."""

RANKED, AGAIN_RANKED, STRIPS, BEAMED, COUNTED = 0.2, 0.05, 0.3, 0.5, 0.9
"""Parts of the time after which there are no more schedules by rank, where there are answers, too, in strips, and by beams; the
last, until when what is counted may go on."""

REGARDLESS, CROSSED = 0.2, 0.5
"""Parts of the time after which there is a schedule without regard for memory, and one that keeps it."""

PACKED = 0.5
"""Part of the spare memory that may be used while equal processors are one: with none left, they do not share it out."""

FEW = 8
"""Tasks for each lane below which equal processors cannot share out what they hold together: no memory is regarded then."""

FEW_ORDERS = 4
"""Orders that are cut where parts need not be contiguous."""

ROOMY = 0.01
"""A gap up to which a schedule that shares memory out by exchanges is what search begins at, and nothing else."""

SPARING_TRIES = 4
"""Schedules by rank with the processor of each task given so that little travels, of which the best is kept."""

HIDDEN = 0.3
"""How much of a passage is load where processors compute meanwhile, and memory is scarce: who reads waits for it."""


def starts(
    problem: Problem,
    tries: int,
    least: float,
    until: float = inf,
    answers: Sequence[Assignment] = (),
    counted: bool = False,
) -> list[Found]:
    """Schedules, the best first.

    Args:
        problem: what is scheduled.
        tries: schedules by rank, at most.
        least: seconds that no schedule beats: nothing is left to do there.
        until: when local search must be through, on `time.perf_counter`; infinite: everything is counted.
        answers: what policies have said already.
        counted: nothing grows with the time that there is; what is counted is only cut short.

    Raises:
        PlacementError: no answer was found.
    """
    counted = counted or until == inf
    roomy = _roomy(problem, tries, least, until, counted)
    now, homes = perf_counter(), Homes(problem)

    def when(part: float) -> float:
        """The moment when a part of the time is over: what is counted is cut short only near the end of it all."""
        return now + (COUNTED if counted else part) * (until - now)

    again = len(answers) > 0 and len(problem.tasks) <= MOST_BEAMED
    known = several(problem, homes, tries, when(AGAIN_RANKED if again else RANKED), answers)
    orders = tries if counted else MOST_TRIED if problem.contiguous else FEW_ORDERS
    cut = in_strips(problem, orders, least, when(STRIPS))
    cut = [each for each in cut if problem.contiguous or each.seconds < known[0].seconds]
    known = sorted([*known, *roomy, *cut], key=lambda each: each.seconds)
    done = known[0].seconds <= least * (1 + (ROOMY if known[0] in roomy else 1e-9))
    if done or len(problem.lanes) < 2:
        return known
    kept: list[Sequence[int]] = [()]
    soon = (AGAIN if again else EVENING) * len(problem.tasks)
    if (uneven(problem) or lumpy(problem) or problem.stands) and perf_counter() + soon < until:
        with suppress(PlacementError):
            load = replace(problem, objective="throughput")
            late = monotonic() + when(BEAMED) - perf_counter()
            often = max(tries, 1 + problem.crowded)  # placed one by one, what comes last goes where there is room
            placed = evenest(load, homes, often, problem.contiguous, late, parts=False)
            even, _ = soon_balanced(load, *placed, HIDDEN, late)
            known, kept = known + settled(problem, even, tries, when(BEAMED))[:2], [even, ()]
    joins = problem.travels and not problem.contiguous and not again and len(problem.tasks) <= MOST_BEAMED
    if joins and perf_counter() + soon < until:
        known = known + clustered(problem, least, when(BEAMED))
    if again and min(each.seconds for each in known) > FULL * least:
        return _sorted(problem, known, counted)
    if not counted or _soon_beamed(problem):
        known = known + widened(problem, kept, least, when(BEAMED), counted, known[0].seconds)
    if joins and (problem.crowded or problem.stands) and perf_counter() + soon < until:
        known = known + _sparing(problem, known, when(BEAMED))
    return _sorted(problem, known, counted)


def _soon_beamed(problem: Problem) -> bool:
    """Whether beams are soon through."""
    count = len(problem.tasks)
    if count <= MOST_BEAMED or count > MOST_UNEVEN:
        return count <= MOST_BEAMED
    return (uneven(problem) and not problem.travels) or count - sum(1 for _ in twins(problem)) <= MOST_BEAMED


def _sparing(problem: Problem, known: Sequence[Found], until: float) -> list[Found]:
    """A schedule for which little travels, from the best one that is known; none where memory is full to the last byte."""
    best = min(known, key=lambda each: each.seconds)
    homes = sparse(problem, [problem.lanes[lane] for lane in best.lanes], monotonic() + until - perf_counter())
    with suppress(PlacementError):  # and bytes are no whole numbers
        found = settled(problem, homes, SPARING_TRIES)[0]
        return [replace(found, rank=found.rank.replace("on even loads", "with little to send", 1))]
    return []


def _sorted(problem: Problem, known: Sequence[Found], counted: bool) -> list[Found]:
    """Schedules, the best first; with time for many, those that are the same once, where tasks have neighbours.

    Where moves are counted most starts get few, and the best one is worth having twice.
    """
    if not counted and (problem.contiguous or problem.travels):
        known = list({(each.seconds, *each.lanes): each for each in reversed(known)}.values())
    return sorted(known, key=lambda each: each.seconds)


def _roomy(problem: Problem, tries: int, least: float, until: float, counted: bool) -> list[Found]:
    """A schedule made with the memory of equal processors together, that keeps each one's; none where none are equal."""
    alike, now = sites(replace(problem, memory=()))[0], perf_counter()
    is_late = now + EVENING * len(problem.tasks) > until
    if is_late or not problem.crowded or len(alike) == len(problem.processors):
        return []
    whole, part = _together(problem, alike), COUNTED if counted else REGARDLESS
    try:
        known = starts(whole, tries, least, now + part / 2 * (until - now), counted=counted)
    except PlacementError:  # which says nothing: not all that is spare may be used
        return []
    soon = now + part * (until - now)
    best = soon_improved(whole, known, least, soon) if counted else improved(whole, known, least, soon, 0)
    lanes = [lane for site in alike for lane, home in enumerate(problem.lanes) if home in site.processors]
    apart = replace(best, lanes=[lanes[each] for each in best.lanes])
    found = crossed(problem, apart, least, now + CROSSED * (until - now), counted)
    return [found] if found else []


def _together(problem: Problem, alike: Sequence[Site]) -> Problem:
    """The problem with equal processors as one, which has their lanes, and their memory but for some that is spare."""
    if len(problem.tasks) < FEW * len(problem.lanes):
        problem = replace(problem, memory=())
    part = PACKED + (1 - PACKED) * min(1.0, sum(problem.memory) / sum(problem.caps)) if inf not in problem.caps else 1.0
    merged = []
    for each in ([problem.processors[number] for number in site.processors] for site in alike):
        memory = part * sum(processor.memory for processor in each)
        merged.append(replace(each[0], lanes=sum(processor.lanes for processor in each), memory=memory))
    return replace(problem, processors=tuple(merged))
