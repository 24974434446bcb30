"""First placements: each unit, in turn, to the processor on which the largest load stays smallest.

    load 60 of 100, memory 7 of 8    counts as 88: where memory is scarce, bytes are a second load, and both are kept even;
    load 70 of 100, memory 2 of 8    counts as 70  otherwise what comes last goes where there is room and not where it is fast

Sources: the longest-first rule of Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics
17(2), 1969, with groups in the place of jobs and what they move counted; Chekuri and Khanna, "On multidimensional packing
problems", SIAM Journal on Computing 33(4), 2004 (loads that are vectors).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from partitioner.planner.feasible import Feasible
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park

SPARING = (16.0, 4.0, 64.0, 256.0, 1.0, 0.0)
"""How many times what all processors lose if a unit runs on one is added to that one's load before loads are compared; the
most promising first. Infinite: each unit goes where it pays least, whatever the loads."""


def sparings(park: Park) -> tuple[float, ...]:
    """Factors to try: where processors are alike to all units, nothing is lost; contiguous parts cannot choose."""
    if park.units.problem.contiguous or not park.waste:
        return (0.0,)
    return (inf, *SPARING) if park.apart else SPARING


def evened(park: Park, rules: Feasible, sparing: float = 0.0, full: float = 0.0) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task: largest groups first, or in topological order if contiguous.

    Args:
        park: the groups as units, whatever contiguity makes of them, and processors.
        rules: where a task may go.
        sparing: how many times what is wasted counts, as in `SPARING`.
        full: the load as which a processor without any memory left counts: what loads will be about. 0: none.

    Raises:
        PlacementError: a task fits nowhere any more.
    """
    units, problem = park.units, rules.problem
    loads, unit_of = Loads(park, [-1] * units.count), units.unit_of
    largest = (units.members[unit][0] for unit in by_size(park))
    for task in range(len(problem.tasks)) if problem.contiguous else largest:
        unit, ways = unit_of[task], rules.processors(task)
        if loads.home[unit] < 0:
            _put(loads, unit, ways, sparing, full if problem.crowded else 0.0)
        rules.assign(task, loads.home[unit])
    return loads.largest, units.spread_over(loads.home)


def _put(loads: Loads, unit: int, ways: Sequence[int], sparing: float, full: float) -> None:
    """Place a unit where the largest load that grows stays smallest, and little is wasted.

    Computing alone says what a processor's load will be at least: many are not looked at that way.
    """
    lost = [sparing * each for each in loads.park.waste[unit]] if sparing and loads.park.waste else [0.0] * len(loads.used)
    held, used, caps = loads.memory[unit], loads.used, loads.park.units.problem.caps
    fill = {each: full * (used[each] + held) / caps[each] if full and held else 0.0 for each in ways}
    slots, rows = loads.slots, loads.seconds
    least = sorted((max(slots[3 * each] + rows[each][unit], fill[each]) + lost[each], each) for each in ways)
    best = (inf, inf, -1)
    found: dict[int, float] = {}
    for load, there in least:
        if load > best[0]:
            break
        deltas = loads.deltas(unit, there)
        trial = (max(loads.highest(deltas), fill[there]) + lost[there], sum(deltas.values()), there)
        if trial < best:
            best, found = trial, deltas
    loads.move(unit, best[2], found)


def by_size(park: Park) -> list[int]:
    """Units by the larger of their shares of all memory and of all work, and those that have little choice first."""
    least = park.units.seconds.min(axis=0)
    share = least / max(float(least.sum()), 1e-300)
    if (held := float(park.units.memory.sum())) > 0:
        share = share + park.units.memory / held
    return sorted(range(park.units.count), key=lambda unit: (len(park.units.able[unit]) > 1, -share[unit]))
