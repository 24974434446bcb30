"""First placements: each unit, in turn, to the processor on which the largest load stays smallest.

Source: the longest-first rule of Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics
17(2), 1969, with groups in the place of jobs and what they move counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from partitioner.planner.feasible import Feasible
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park

MOST_PAIRS = 400_000
"""Units times processors that are weighed, in all."""

FILLED = (1.1, 1.0, 1.2, 1.05, 1.35, 1.6, 2.0)
"""How full processors are, as part of what each would have if work could be cut anywhere; where few are tried, the first."""


def greedy(park: Park) -> list[int] | None:
    """Largest first; ``None`` if memory runs out. Contiguity is not looked at."""
    units, caps = park.units, park.units.problem.caps
    if units.count * len(caps) > MOST_PAIRS:
        return None
    loads = Loads(park, [-1] * units.count)
    for unit in by_size(park):
        room = [each for each in units.able[unit] if loads.used[each] + loads.memory[unit] <= caps[each]]
        if not room:
            return None
        _put(loads, unit, room)
    return loads.home


def evened(park: Park, rules: Feasible, full: float = 0.0) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task: largest groups first, or in topological order if contiguous.

    Args:
        park: the groups as units, whatever contiguity makes of them, and processors.
        rules: where a task may go.
        full: processors are filled up to so many seconds, one after the other; 0: all of them evenly.

    Raises:
        PlacementError: a task fits nowhere any more.
    """
    units, problem = park.units, rules.problem
    loads, unit_of = Loads(park, [-1] * units.count), units.unit_of
    order: Sequence[int] = range(len(problem.tasks))
    if not problem.contiguous:
        most = [max((row[task] for row in problem.seconds if row[task] < inf), default=0.0) for task in order]
        size = [sum(most[task] for task in tasks) for tasks in units.members]
        order = sorted(order, key=lambda task: (-size[unit_of[task]], unit_of[task]))
    for task in order:
        unit, ways = unit_of[task], rules.processors(task)
        if loads.home[unit] < 0:
            _put(loads, unit, ways, full)
        rules.assign(task, loads.home[unit])
    return loads.largest, units.spread_over(loads.home)


def fillings(park: Park) -> list[float]:
    """Seconds to which processors may be filled one after the other, where parts must be contiguous; few for large problems.

    From what each would have if work could be cut anywhere to twice as much.
    """
    problem, seconds = park.units.problem, park.units.seconds
    if not problem.contiguous or not seconds.size:
        return []
    least = float(seconds.min(axis=0).sum()) / len(problem.processors)
    return [least * part for part in FILLED[: MOST_PAIRS // seconds.size]]


def _put(loads: Loads, unit: int, ways: Sequence[int], full: float = 0.0) -> None:
    """Place a unit where the largest load that grows stays smallest, or on the first processor that it does not overfill."""

    def cost(trial: tuple[dict[int, float], int]) -> tuple[float, float]:
        deltas, there = trial
        highest = loads.highest(deltas)
        return (max(highest, full), there) if full else (highest, sum(deltas.values()))

    deltas, there = min(((loads.deltas(unit, each), each) for each in ways), key=cost)
    loads.move(unit, there, deltas)


def by_size(park: Park) -> list[int]:
    """Units by the larger of their shares of all memory and of all work, and those that have little choice first."""
    least = park.units.seconds.min(axis=0)
    share = least / max(float(least.sum()), 1e-300)
    if (held := float(park.units.memory.sum())) > 0:
        share = share + park.units.memory / held
    return sorted(range(park.units.count), key=lambda unit: (len(park.units.able[unit]) > 1, -share[unit]))
