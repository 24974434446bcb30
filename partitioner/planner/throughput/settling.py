"""Each unit where the loads of all processors, to a power, grow least, beside all others; again until none moves.

    x | a b     power 1    c, connected to a and b, takes 3 s on y, 4 s on x and 2 s to travel: to x, for 4 is less than 3 + 2
    y | c d     power 8    y has less to do than x by now: what costs 2 s more there, and 1 s less on x, goes to y

Units that are placed one after the other do not know yet what they will be connected to. Low powers put them where all take
least, high ones make loads even, and each begins where the one before it has ended.

Source: Besag, "On the statistical analysis of dirty pictures", Journal of the Royal Statistical Society B 48(3), 1986 (iterated
conditional modes). Of powers in turn: Awerbuch et al., "Load balancing in the l_p norm", FOCS 1995.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from math import inf
from time import monotonic

from partitioner.errors import PlacementError
from partitioner.planner.latency.homes import Homes
from partitioner.planner.throughput.convex import Convex
from partitioner.planner.throughput.first import evened
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park

POWERS = (1, 2, 4, 8, 16, 32)
"""Of the loads, one after the other."""

SOON, MOST = 20_000, 200_000
"""Units times processors up to which this takes a second, and those beyond which they stay where they are, if there is no limit
of time. Between them there is one power."""

MIDDLE = (4,)
"""The one power."""

TOGETHER = 64
"""Units that are looked at between two looks at the time."""

AGAIN = 4
"""Times that each unit is looked at, on average, at most, with one power."""


def settled(park: Park, homes: Sequence[int], until: float = inf) -> tuple[float, list[int]]:
    """The best placement after each power, or the first one: its largest load, and the processor of each unit.

    Args:
        park: units, contiguous or not, and processors.
        homes: where units are at first; memory and contiguity are kept if these keep them.
        until: moment, by the monotonic clock, at which to stop; infinite: the answer is the same on every machine.
    """
    loads, state = Loads(park, homes), Convex(park.units, homes)
    best = loads.largest, list(homes)
    looks = park.units.seconds.size
    for power in POWERS if until < inf or looks <= SOON else MIDDLE if looks <= MOST else ():
        _settle(loads, state, power, until)
        if loads.largest < best[0]:
            best = loads.largest, list(loads.home)
    return best


def evenly(park: Park, rules: Homes, sparing: float, bound: float, until: float = inf) -> tuple[float, list[int]]:
    """The largest load, and the processor of each task: placed and, where processors differ, settled.

    Args:
        park: groups as units, and processors; contiguity is not looked at where units settle.
        rules: where a task may go.
        sparing: how many times what is wasted counts, as in `first.SPARING`.
        bound: seconds that no placement beats.
        until: as in `settled`.

    Raises:
        PlacementError: a task fits nowhere any more.
    """
    if sparing == inf:
        homes = _undisturbed(park)
    else:
        load, tasks = rules.run(partial(evened, park, sparing=sparing, full=bound))
        if not park.waste or rules.problem.contiguous:
            return load, tasks
        homes = park.units.of_tasks(tasks)
    load, homes = settled(park, homes, until)
    return load, park.units.spread_over(homes)


def _undisturbed(park: Park) -> list[int]:
    """Each unit where it pays least or, if memory does not suffice there, where it is fastest.

    Raises:
        PlacementError: memory does not suffice there, either.
    """
    for paid in (park.paid, park.units.seconds):
        homes: list[int] = paid.argmin(axis=0).tolist()
        if park.units.valid(homes):
            return homes
    raise PlacementError("Where tasks pay least, and where they are fastest, memory does not suffice.")


def _settle(loads: Loads, state: Convex, power: int, until: float) -> None:
    """Move units to where loads grow least, and look again at all that a unit is connected to when it has moved."""
    units, caps, scale = loads.park.units, loads.park.units.problem.caps, loads.largest
    waiting, inside = deque(range(units.count)), set(range(units.count))
    for look in range(AGAIN * units.count if scale > 0.0 else 0):
        if not waiting or (not look % TOGETHER and monotonic() > until):
            break
        inside.discard(unit := waiting.popleft())
        here, held, least, best = loads.home[unit], loads.memory[unit], -1e-12, -1
        found: dict[int, float] = {}
        for there in _ways(loads, unit):
            if there != here and loads.used[there] + held <= caps[there]:
                deltas = loads.deltas(unit, there)
                more = loads.energy(deltas, scale, power)
                if more < least and state.may_leave((unit,), here) and state.may_join((unit,), there):
                    least, best, found = more, there, deltas
        if best >= 0:
            loads.move(unit, best, found)
            state.leave((unit,), here)
            state.join(unit, best)
            connected = [each for each in units.near[unit] if each not in inside]
            waiting.extend(connected)
            inside.update(connected)


def _ways(loads: Loads, unit: int) -> list[int]:
    """Where a unit may go: to what it is connected to, or to the one of equal processors that has the least to do."""
    units, home, held, able = loads.park.units, loads.home, loads.memory[unit], loads.park.units.able_sets[unit]
    found = {home[each] for each in units.near[unit]}
    for alike in loads.park.classes:
        free = [each for each in alike.processors if loads.used[each] + held <= units.problem.caps[each]]
        found.update(free if len(free) < 2 else [min(free, key=loads.load)])
    return sorted(found & able)
