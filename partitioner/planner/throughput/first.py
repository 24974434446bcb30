"""A first placement where stages found none, or to compare with them: greedy, and then by backtracking."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park
from partitioner.planner.throughput.search import Convex

MOST_PAIRS = 400_000
"""Units times processors up to which every pair is weighed."""

STEPS = 50_000
"""Placements of a unit that backtracking tries before it gives up."""


def greedy(park: Park) -> list[int] | None:
    """Largest first, each unit to the processor that makes the largest load smallest; ``None`` if memory runs out.

    Contiguity is not looked at.
    """
    units, caps = park.units, [each.memory for each in park.units.problem.processors]
    if units.count * len(caps) > MOST_PAIRS:
        return None
    loads = Loads(park, [-1] * units.count)
    for unit in _by_size(park):
        room = [each for each in units.able[unit] if loads.used[each] + loads.memory[unit] <= caps[each]]
        if not room:
            return None
        trials = [(loads.deltas(unit, there), there) for there in room]
        deltas, there = min(trials, key=lambda trial: (_highest(loads, trial[0]), sum(trial[0].values())))
        loads.move(unit, there, deltas)
    return loads.home


def _highest(loads: Loads, deltas: dict[int, float]) -> float:
    return max(loads.slots[slot] + change for slot, change in deltas.items())


def _by_size(park: Park) -> list[int]:
    """Units by the larger of their shares of all memory and of all work, and those that have little choice first."""
    least = park.units.seconds.min(axis=0)
    share = least / max(float(least.sum()), 1e-300)
    if (held := float(park.units.memory.sum())) > 0:
        share = share + park.units.memory / held
    return sorted(range(park.units.count), key=lambda unit: (len(park.units.able[unit]) > 1, -share[unit]))


def backtracked(park: Park, order: Sequence[int] | None = None) -> tuple[list[int] | None, bool]:
    """Any placement that fits, depth first.

    Args:
        park: units and processors.
        order: in which units are placed; those of most memory first where none is given.

    Returns:
        The processor of each unit or ``None``; and whether that there is none has been proven.
    """
    units, caps = park.units, [each.memory for each in park.units.problem.processors]
    if units.contiguous and units.reach is None:
        return None, False
    sequence = _by_size(park) if order is None else list(order)
    used, homes, state = [0.0] * len(caps), [-1] * units.count, Convex(park, [])
    untried: list[list[int]] = []
    for _ in range(STEPS):
        depth = len(untried)
        if depth == len(sequence):
            return homes, False
        unit = sequence[depth]
        need = float(units.memory[unit])
        free = [each for each in units.able[unit] if used[each] + need <= caps[each] and _closed(park, state, unit, each)]
        untried.append(sorted(free, key=lambda each: (bool(state.units[each]), used[each] - caps[each]), reverse=True))
        while untried and not untried[-1]:
            untried.pop()
            if untried:
                _take_back(park, sequence[len(untried) - 1], homes, used, state)
        if not untried:
            return None, True
        unit, there = sequence[len(untried) - 1], untried[-1].pop()
        homes[unit] = there
        used[there] += float(units.memory[unit])
        state.join(unit, there)
    return None, False


def _closed(park: Park, state: Convex, unit: int, there: int) -> bool:
    """Whether no unit that has been placed would lie between two of another processor, with ``unit`` on ``there``."""
    reach = park.units.reach
    if reach is None:
        return True
    others = [each for each in range(len(state.own)) if each != there]
    if any(reach.own[unit] & state.after[each] & state.before[each] for each in others):
        return False
    between = (state.after[there] | reach.after[unit]) & (state.before[there] | reach.before[unit])
    return not any(between & state.own[each] for each in others)


def _take_back(park: Park, unit: int, homes: list[int], used: list[float], state: Convex) -> None:
    here = homes[unit]
    homes[unit] = -1
    used[here] -= float(park.units.memory[unit])
    state.leave(unit, here)
