"""The loads of all processors while units move between them: what one move would change, found from the flows it touches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from partitioner.planner.throughput.prices import Park

HOPELESS = 2.0
"""A load, relatively, beyond which all are equally bad; its power is still a number."""


class Loads:
    """Where each unit is, and what that costs.

    Args:
        park: the processors and the units.
        homes: the processor of each unit; -1: not placed yet. A flow costs nothing until its maker is placed.
    """

    def __init__(self, park: Park, homes: Sequence[int]) -> None:
        units = park.units
        self.park, self.prices = park, park.prices
        self.home = [-1] * units.count
        self.seconds = units.rows
        self.memory: list[float] = units.memory.tolist()
        self.flows = [(flow.maker, float(flow.count), flow.size) for flow in units.flows]
        self.touching = units.touching
        self.readers: list[dict[int, int]] = [{} for _ in units.flows]
        self.there = [0] * len(units.flows)
        self.slots = [0.0] * (3 * len(units.problem.processors))
        self.used = [0.0] * len(units.problem.processors)
        self._begin(homes)

    def _begin(self, homes: Sequence[int]) -> None:
        """Put units on their processors, as if one after the other: all that each flow costs is counted once."""
        slots, home, charges = self.slots, self.home, self.prices.charges
        for unit, here in enumerate(homes):
            if here >= 0:
                home[unit] = here
                slots[3 * here] += self.seconds[here][unit]
                self.used[here] += self.memory[unit]
        for number, flow in enumerate(self.park.units.flows):
            readers = self.readers[number]
            for reader in flow.readers:
                if (there := home[reader]) >= 0:
                    readers[there] = readers.get(there, 0) + 1
            self.there[number] = mask = sum(1 << there for there in readers)
            if (here := home[flow.maker]) >= 0 and mask | 1 << here != 1 << here:
                for slot, each, byte in charges(here, mask):
                    slots[slot] += each * flow.count + byte * flow.size

    def load(self, processor: int) -> float:
        """Seconds of the fullest slot of a processor."""
        return max(self.slots[3 * processor : 3 * processor + 3])

    @property
    def largest(self) -> float:
        """What the objective makes small."""
        return max(self.slots, default=0.0)

    def highest(self, deltas: Mapping[int, float]) -> float:
        """Seconds of the fullest of the slots to which something would be added."""
        return max(self.slots[slot] + change for slot, change in deltas.items())

    def energy(self, deltas: Mapping[int, float], scale: float, power: int) -> float:
        """What the sum of a power of all loads, in units of ``scale``, would change by."""
        slots, total = self.slots, 0.0
        for first in {slot - slot % 3 for slot in deltas}:
            one, two, three = slots[first : first + 3]
            old = max(one, two, three)
            new = max(one + deltas.get(first, 0.0), two + deltas.get(first + 1, 0.0), three + deltas.get(first + 2, 0.0))
            total += min(HOPELESS, max(new, 0.0) / scale) ** power - min(HOPELESS, max(old, 0.0) / scale) ** power
        return total

    def deltas(self, unit: int, there: int) -> dict[int, float]:
        """What would be added to which slots if a unit went to another processor."""
        here, charges = self.home[unit], self.prices.charges
        found: dict[int, float] = {3 * there: self.seconds[there][unit]}
        if here >= 0:
            found[3 * here] = -self.seconds[here][unit]
        for number in self.touching[unit]:
            maker, count, size = self.flows[number]
            mask = self.there[number]
            if maker == unit:
                old, new, after = here, there, mask
            else:
                old = new = self.home[maker]
                after = self._moved(number, here, there, mask)
                if old < 0 or after == mask:
                    continue
            if old >= 0:
                for slot, each, byte in charges(old, mask):
                    found[slot] = found.get(slot, 0.0) - each * count - byte * size
            for slot, each, byte in charges(new, after):
                found[slot] = found.get(slot, 0.0) + each * count + byte * size
        return found

    def _moved(self, number: int, here: int, there: int, mask: int) -> int:
        """The processors that read a flow after one reader has gone from ``here`` to ``there``."""
        if here >= 0 and self.readers[number][here] == 1:
            mask &= ~(1 << here)
        return mask | 1 << there

    def joint_deltas(self, moves: Mapping[int, int]) -> dict[int, float]:
        """`deltas` of several units that are placed and go to other processors together."""
        found: defaultdict[int, float] = defaultdict(float)
        changes: dict[int, dict[int, int]] = {}
        for unit, there in moves.items():
            here = self.home[unit]
            found[3 * here] -= self.seconds[here][unit]
            found[3 * there] += self.seconds[there][unit]
            for number in self.touching[unit]:
                own = changes.setdefault(number, {})
                if self.flows[number][0] != unit:
                    own[here], own[there] = own.get(here, 0) - 1, own.get(there, 0) + 1
        for number, own in changes.items():
            self._passage(number, moves, own, found)
        return found

    def _passage(self, number: int, moves: Mapping[int, int], own: Mapping[int, int], found: dict[int, float]) -> None:
        """Add what a flow costs more if its maker moves, and each processor gets ``own`` more of its readers."""
        maker, count, size = self.flows[number]
        readers, mask = self.readers[number], self.there[number]
        after = mask
        for processor, more in own.items():
            after = after | 1 << processor if readers.get(processor, 0) + more else after & ~(1 << processor)
        old, charges = self.home[maker], self.prices.charges
        new = moves.get(maker, old)
        if (old == new and mask == after) or (mask == 1 << old and after == 1 << new):
            return  # the same as before; or it is not read elsewhere, neither before nor after
        for slot, each, byte in charges(old, mask):
            found[slot] -= each * count + byte * size
        for slot, each, byte in charges(new, after):
            found[slot] += each * count + byte * size

    def beyond(self, moves: Mapping[int, int]) -> float:
        """By how many bytes more than now processors would hold more than they have."""
        more: defaultdict[int, float] = defaultdict(float)
        for unit, there in moves.items():
            more[there] += self.memory[unit]
            more[self.home[unit]] -= self.memory[unit]
        over = ((self.used[each] - self.park.units.problem.caps[each], held) for each, held in more.items())
        return sum(max(0.0, each + held) - max(0.0, each) for each, held in over)

    def move(self, unit: int, there: int, deltas: Mapping[int, float] | None = None) -> None:
        """Put a unit on a processor; ``deltas`` if they are known."""
        for slot, change in (self.deltas(unit, there) if deltas is None else deltas).items():
            self.slots[slot] += change
        here = self.home[unit]
        if here >= 0:
            self.used[here] -= self.memory[unit]
        self.used[there] += self.memory[unit]
        for number in self.touching[unit]:
            if self.flows[number][0] == unit:
                continue
            self.there[number] = self._moved(number, here, there, self.there[number])
            readers = self.readers[number]
            readers[there] = readers.get(there, 0) + 1
            if here >= 0:
                readers[here] -= 1
        self.home[unit] = there

    def move_all(self, moves: Mapping[int, int], deltas: Mapping[int, float]) -> None:
        """Put several units on other processors; ``deltas`` are `joint_deltas`."""
        for unit, there in moves.items():
            self.move(unit, there, deltas)
            deltas = {}

    def lift(self, unit: int, slots: Sequence[float]) -> None:
        """Take a unit away again; ``slots`` are those from before it was placed."""
        here, self.home[unit] = self.home[unit], -1
        self.slots[:] = slots
        self.used[here] -= self.memory[unit]
        for number in self.touching[unit]:
            if self.flows[number][0] != unit:
                self.readers[number][here] -= 1
                if not self.readers[number][here]:
                    self.there[number] &= ~(1 << here)
