"""Beams over one problem: from both ends, with tasks anywhere and with homes that are given, wider as long as there is time.

on even loads,  9,000 looks    from the start 104.1, from the end 100.9
anywhere,       9,000 looks    from the start 107.0, from the end 103.3
on even loads, 27,000 looks    from the start 100.0, which is the bound
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from time import perf_counter

from partitioner.ir.problem import Problem
from partitioner.planner.latency.beam import READY, Beam
from partitioner.planner.latency.build import mirrored
from partitioner.planner.latency.ranks import by_urgency
from partitioner.planner.latency.tries import Found
from partitioner.planner.timing import timed

LOOKS, PER_WAY = 9_000, 75
"""Tasks that the first beams try at the end of schedules, in all, at most; and for each task and lane, in small problems."""

WEIGHT = 0.05
"""Of the tails that are left, beside what a schedule takes at least."""

PER_LOOK, PER_WAY_AHEAD = 3e-5, 1e-5
"""Seconds of one of them, about; and of a way for a ready task to go on, in one schedule, most of which are not looked at."""

GROWTH = 3
"""By how much the next beams are wider."""

FAR = 1.05
"""How many times the best schedule that is known those of beams may take for wider ones to be worth their time."""


class Beams:
    """Both ends of a problem.

    Args:
        problem: what is scheduled; nothing is found where contiguity leaves a choice.
        homes: the processor of each task; empty: anywhere.
    """

    def __init__(self, problem: Problem, homes: Sequence[int] = ()) -> None:
        pin = dict(zip(problem.group_of, homes, strict=True)) if homes else problem.pin
        self.problem, fixed = problem, replace(problem, pin=pin)
        self.name = "by beams, on even loads" if homes else "by beams"
        self.mirror = mirrored(fixed)
        self.sides: list[Beam] = []
        if not problem.contiguous or all(len(able) == 1 for able in fixed.able.values()):
            self.sides = [Beam(fixed), Beam(self.mirror)]

    def __call__(self, looks: int) -> Iterator[Found | None]:
        """A schedule for each side; ``None`` where memory ran out."""
        for side in self.sides:
            made = side(looks, WEIGHT)
            yield made and (self._turned(*made) if side.problem is self.mirror else self._found(*made))

    def _turned(self, lanes: Sequence[int], order: Sequence[int]) -> Found:
        end = timed(self.mirror, lanes, order).end
        return self._found(lanes[::-1], by_urgency(self.problem, end[::-1]))

    def _found(self, lanes: Sequence[int], order: Sequence[int]) -> Found:
        return Found.of(timed(self.problem, lanes, order), order, self.name)


def widened(
    problem: Problem,
    homes: Sequence[Sequence[int]],
    least: float,
    until: float = inf,
    once: bool = False,
    known: float = inf,
) -> list[Found]:
    """Schedules by beams that become wider while there is time, the best first.

    Args:
        problem: what is scheduled.
        homes: processors of tasks that are kept, each in turn; empty: tasks may go anywhere.
        least: seconds that no schedule beats: nothing is left to do there.
        until: moment, on `time.perf_counter`, to which no beam goes on, about; infinite: there is one round.
        once: there is one round, whatever the time.
        known: seconds of a schedule that is known: beams that stay far behind it do not become wider.
    """
    found: list[Found] = []
    ways = len(problem.tasks) * len(problem.lanes)
    looks = min(LOOKS, PER_WAY * ways) // (3 if problem.stands else 1)

    def is_late() -> bool:
        """Whether the next beam would end too late. The narrowest goes on with the ready tasks of one schedule each time."""
        return perf_counter() + max(PER_LOOK * looks, PER_WAY_AHEAD * READY * ways) > until

    if is_late():
        return found
    beams = [Beams(problem, each) for each in homes]
    while any(each.sides for each in beams):
        for one in (one for each in beams for one in each(looks)):
            if one is not None:
                found = sorted([*found, one], key=lambda each: each.seconds)
            best = found[0].seconds if found else inf
            if best <= least * (1 + 1e-9) or is_late():
                return found
        if once or until == inf or best > FAR * known:
            break
        looks *= GROWTH
    return found
