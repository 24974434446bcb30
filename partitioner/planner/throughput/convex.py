"""Contiguity while units move: what each processor has, what follows that and what comes before it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from partitioner.planner.throughput.units import Units


class Convex:
    """Keeps each processor's forward tasks convex: as bits, its own tasks, those that follow and those that come before.

    Args:
        units: what is placed.
        homes: the processor of each unit; empty: none is placed yet.
    """

    def __init__(self, units: Units, homes: Sequence[int]) -> None:
        count = len(units.problem.processors)
        self.reach, self.asked = units.reach, units.contiguous
        self.units: list[set[int]] = [set() for _ in range(count)]
        self.own, self.after, self.before = [0] * count, [0] * count, [0] * count
        for unit, home in enumerate(homes):
            self.units[home].add(unit)
        if self.reach is not None:
            for processor, units_there in enumerate(self.units):
                self.own[processor], self.after[processor], self.before[processor] = self.reach.of(units_there)

    def between(self, processor: int, coming: Iterable[int] = (), going: Collection[int] = ()) -> int:
        """The forward tasks on paths that leave a processor's units and come back, once some have come and gone, as bits."""
        state: Sequence[int] = self._left(processor, going) if going else self._state(processor)
        if coming:
            assert self.reach is not None
            state = [old | new for old, new in zip(state, self.reach.of(coming), strict=True)]
        own, after, before = state
        return after & before & ~own

    def _left(self, processor: int, going: Iterable[int]) -> tuple[int, int, int]:
        """The bits of a processor once some units have gone."""
        reach, going = self.reach, tuple(going)
        assert reach is not None
        own, after, before = self._state(processor)
        for unit in going:
            own &= ~reach.own[unit]
        single = all(not reach.own[unit] & (reach.own[unit] - 1) for unit in going if reach.own[unit])
        late = single and all(reach.before[unit] & own for unit in going if reach.own[unit])
        soon = single and all(reach.after[unit] & own for unit in going if reach.own[unit])
        if not (late and soon):  # else those that are left lead to all that the single tasks did, and come from all of it
            _, led, leads = reach.of(self.units[processor].difference(going))
            after, before = after if late else led, before if soon else leads
        return own, after, before

    def may_leave(self, units: Iterable[int], here: int) -> bool:
        """Whether none of some units is on a path between two others of their processor."""
        reach, units = self.reach, tuple(units)
        if reach is None:
            return not self.asked
        others = self.own[here]
        for unit in units:
            others &= ~reach.own[unit]
        return not any(reach.after[unit] & others and reach.before[unit] & others for unit in units)

    def may_join(self, units: Iterable[int], there: int, without: Collection[int] = ()) -> bool:
        """Whether a processor stays convex with further units, and without some of those that it has."""
        return not self.asked if self.reach is None else not self.between(there, units, without)

    def _state(self, processor: int) -> tuple[int, int, int]:
        return self.own[processor], self.after[processor], self.before[processor]

    def join(self, unit: int, there: int) -> None:
        """Note that a unit has come."""
        self.units[there].add(unit)
        if self.reach is not None:
            self.own[there] |= self.reach.own[unit]
            self.after[there] |= self.reach.after[unit]
            self.before[there] |= self.reach.before[unit]

    def leave(self, units: Iterable[int], here: int) -> None:
        """Note that units have gone."""
        units = tuple(units)
        if self.reach is not None:
            self.own[here], self.after[here], self.before[here] = self._left(here, units)
        self.units[here].difference_update(units)
