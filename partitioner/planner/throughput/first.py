"""A first placement, to compare with stages: the largest units first, each where it hurts least."""

from __future__ import annotations

from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.prices import Park

MOST_PAIRS = 400_000
"""Units times processors up to which every pair is weighed."""


def greedy(park: Park) -> list[int] | None:
    """Largest first, each unit to the processor that makes the largest load smallest; ``None`` if memory runs out.

    Contiguity is not looked at.
    """
    units, caps = park.units, [each.memory for each in park.units.problem.processors]
    if units.count * len(caps) > MOST_PAIRS:
        return None
    loads = Loads(park, [-1] * units.count)
    for unit in by_size(park):
        room = [each for each in units.able[unit] if loads.used[each] + loads.memory[unit] <= caps[each]]
        if not room:
            return None
        trials = [(loads.deltas(unit, there), there) for there in room]
        deltas, there = min(trials, key=lambda trial: (_highest(loads, trial[0]), sum(trial[0].values())))
        loads.move(unit, there, deltas)
    return loads.home


def _highest(loads: Loads, deltas: dict[int, float]) -> float:
    return max(loads.slots[slot] + change for slot, change in deltas.items())


def by_size(park: Park) -> list[int]:
    """Units by the larger of their shares of all memory and of all work, and those that have little choice first."""
    least = park.units.seconds.min(axis=0)
    share = least / max(float(least.sum()), 1e-300)
    if (held := float(park.units.memory.sum())) > 0:
        share = share + park.units.memory / held
    return sorted(range(park.units.count), key=lambda unit: (len(park.units.able[unit]) > 1, -share[unit]))
