"""Memory first: the fewest processors that hold a model, cut where the least passes over, each with as much headroom as can be.

    groups in the order of their first task   a  b | c  d  e | f        segments, each within its processor's memory
    bytes that pass over each cut             12 5   3 ...

Groups are laid out in topological order and cut into segments by dynamic programming: of all cuts into the fewest segments
that fit, those over which the fewest bytes pass, and of those the one that fills processors most evenly. Where no order of
processors takes such segments, for example because of pins, groups are packed one by one, the largest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from partitioner.errors import PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.ir.units import format_size
from partitioner.planner.assigned import placed
from partitioner.planner.latency.packing import certificate


@dataclass(frozen=True)
class Fit:
    """As few processors as memory allows. One works at a time in latency; what a model needs that fits on none alone."""

    def __call__(self, problem: Problem) -> Assignment:
        """Place every task.

        Raises:
            PlacementError: the groups do not fit; says how much is missing.
        """
        groups = sorted(problem.members, key=lambda group: problem.members[group][0])
        usable = _usable(problem)
        for count in range(1, len(usable) + 1):
            home = _segments(problem, groups, usable[:count])
            if home is not None:
                return self._answer(problem, home, count)
        home = certificate(problem)
        if home is None:
            raise PlacementError(_missing(problem))
        return self._answer(problem, home, len(set(home.values())))

    def _answer(self, problem: Problem, home: dict[int, int], count: int) -> Assignment:
        plural = "processor holds" if count == 1 else "processors hold"
        processors = [home[group] for group in problem.group_of]
        return placed(problem, "fit", processors, note=f"{count} {plural} it, and no fewer were found to")


def _usable(problem: Problem) -> list[int]:
    """Processors in the order in which they are filled: those that are pinned to, then the roomiest, then as given."""
    pinned = set(problem.pin.values())
    return sorted(range(len(problem.processors)), key=lambda each: (each not in pinned, -problem.processors[each].memory, each))


def _segments(problem: Problem, groups: list[int], processors: list[int]) -> dict[int, int] | None:
    """Consecutive groups for each of ``processors``, which are taken in the order of their numbers."""
    if problem.contiguous and any(_scattered(problem, group) for group in groups):
        return None
    ordered = sorted(processors)
    able = {group: set(problem.able(group)) for group in groups} if problem.pin or len(problem.kinds) > 1 else {}
    crossing = _crossing(problem, groups)
    # best[i]: (bytes over cuts, sum of squared fills, starts of the segments) of the first i groups on the processors so far
    best: list[tuple[float, float, tuple[int, ...]] | None] = [None] * (len(groups) + 1)
    best[0] = (0.0, 0.0, ())
    for processor in ordered:
        best = _extended(problem, groups, best, processor, able, crossing)
    found = best[len(groups)]
    if found is None:
        return None
    starts = [*found[2], len(groups)]
    return {group: ordered[number] for number in range(len(ordered)) for group in groups[starts[number] : starts[number + 1]]}


Best = list[tuple[float, float, tuple[int, ...]] | None]


def _extended(
    problem: Problem, groups: list[int], best: Best, processor: int, able: dict[int, set[int]], crossing: list[float]
) -> Best:
    """The best cuts with one processor more, which takes none, one or several groups."""
    memory = problem.processors[processor].memory
    found: Best = [None if each is None else (each[0], each[1], (*each[2], number)) for number, each in enumerate(best)]
    for start, state in enumerate(best):
        if state is None:
            continue
        used = 0.0
        for end in range(start + 1, len(groups) + 1):
            group = groups[end - 1]
            used += problem.demand[group]
            if used > memory or (able and processor not in able[group]):
                break
            fill = used / memory if 0 < memory < inf else 0.0
            cost = (state[0] + (crossing[end] if end < len(groups) else 0.0), state[1] + fill * fill)
            known = found[end]
            if known is None or cost < known[:2]:
                found[end] = (*cost, (*state[2], start))
    return found


def _crossing(problem: Problem, groups: list[int]) -> list[float]:
    """Bytes that pass over a cut before each position: of values that are made before it and read behind it."""
    position = {group: number for number, group in enumerate(groups)}
    change = [0.0] * (len(groups) + 1)
    for (maker, size), readers in zip(problem.values, problem.readers, strict=True):
        at = position[problem.group_of[maker]]
        last = max((position[problem.group_of[reader]] for reader in readers), default=at)
        if last > at:
            change[at + 1] += size
            change[last + 1 if last + 1 < len(change) else last] -= size
    total, found = 0.0, []
    for each in change:
        total += each
        found.append(total)
    return found


def _scattered(problem: Problem, group: int) -> bool:
    """Whether other groups' tasks lie between those of a group, so that consecutive groups may not be contiguous."""
    tasks = [task for task in problem.members[group] if task not in problem.backward]
    return len(tasks) > 1 and tasks[-1] - tasks[0] >= len(tasks)


def _missing(problem: Problem) -> str:
    need = sum(problem.demand.values())
    room = sum(each.memory for each in problem.processors)
    largest = sorted(problem.demand, key=lambda group: -problem.demand[group])[:3]
    names = ", ".join(f"{problem.tasks[problem.members[each][0]]} ({format_size(problem.demand[each])})" for each in largest)
    return (
        f"{format_size(need)} of parameters and buffers were not brought onto {len(problem.processors)} processors with "
        f"{format_size(room)} of memory together.\nThe largest that must stay whole: {names}. "
        "Raise a memory cap, add a device, or remove a pin."
    )
