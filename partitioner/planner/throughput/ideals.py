"""Cut points that are all down-closed sets of the units: with each unit, all that lead to it.

    a > b, a > c     {}  {a}  {a,b}  {a,c}  {a,b,c}       five ideals, against the four cut points of one order
"""

from __future__ import annotations

import numpy as np

from partitioner.planner.throughput.prices import Park
from partitioner.planner.throughput.stages import Numbers, joined
from partitioner.planner.throughput.units import Floats, Units, bits


def ideals(units: Units, most: int) -> list[int] | None:
    """All down-closed sets of the units, as bits, each after those within it; ``None`` if there are more than ``most``.

    Args:
        units: units that make no cycle, in any order.
        most: how many are too many.
    """
    needs = [0] * units.count
    for unit, followers in enumerate(units.after):
        for follower in followers:
            needs[follower] |= 1 << unit
    seen, layer = [0], {0}
    while layer:
        layer = {
            ideal | 1 << unit
            for ideal in layer
            for unit in range(units.count)
            if not ideal >> unit & 1 and not needs[unit] & ~ideal
        }
        seen += sorted(layer)
        if len(seen) > most:
            return None
    return seen


class IdealCuts:
    """The ideals of the units as cut points.

    Args:
        park: units, which make no cycle, and processors.
        found: their ideals, each after those within it.
    """

    def __init__(self, park: Park, found: list[int]) -> None:
        units = park.units
        self._masks, self.size = found, len(found)
        self._overlap = units.problem.overlap
        within = np.zeros((len(found), units.count), dtype=bool)
        for number, ideal in enumerate(found):
            within[number, bits(ideal)] = True
        self._packed = np.packbits(within, axis=1)
        seconds = np.array([units.seconds[each.processors[0]] for each in park.classes])
        self._unable = (~np.isfinite(seconds)).astype(float) @ within.T
        self._compute = np.where(np.isfinite(seconds), seconds, 0.0) @ within.T
        self._memory = within @ units.memory
        self._caps = np.array([units.problem.processors[each.processors[0]].memory for each in park.classes])
        self._made = within[:, [flow.maker for flow in units.flows]]
        self._read = np.zeros((len(found), len(units.flows)), dtype=np.int32)
        for number, flow in enumerate(units.flows):
            self._read[:, number] = within[:, list(flow.readers)].sum(axis=1)
        self._readers = np.array([len(flow.readers) for flow in units.flows], dtype=np.int32)
        self._sends = np.array([park.flow_seconds(*each.sends) for each in park.classes])
        self._receives = np.array([park.flow_seconds(*each.receives) for each in park.classes])

    def column(self, last: int, limit: float) -> tuple[Numbers, Floats]:
        """The loads of the stages that end with an ideal, on each class of processors."""
        inside = ~(self._packed[:last] & ~self._packed[last]).any(axis=1)
        short = ((self._compute[:, last : last + 1] - self._compute[:, :last]) <= limit * (1 + 1e-9)).any(axis=0)
        rows = np.flatnonzero(inside & short)
        compute = self._compute[:, last : last + 1] - self._compute[:, rows]
        made = self._made[last] & ~self._made[rows]
        read = self._read[last] - self._read[rows]
        sends = (made & (read < self._readers)) @ self._sends.T
        receives = (~made & (read > 0)) @ self._receives.T
        loads = joined(compute, sends.T, receives.T, self._overlap)
        loads[self._unable[:, last : last + 1] > self._unable[:, rows] + 0.5] = np.inf
        loads[self._memory[last] - self._memory[rows] > self._caps[:, None]] = np.inf
        return rows, loads

    def stage(self, first: int, last: int) -> list[int]:
        """The units that one ideal has more than another."""
        return bits(self._masks[last] & ~self._masks[first])
