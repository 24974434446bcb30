"""Cut points that are all down-closed sets of the units: with each unit, all that lead to it.

a > b, a > c     {}  {a}  {a,b}  {a,c}  {a,b,c}       five ideals, against the four cut points of one order
"""

from __future__ import annotations

import numpy as np

from partitioner.planner.feasible import bits
from partitioner.planner.throughput.prices import Park
from partitioner.planner.throughput.stages import Bits, Numbers, joined
from partitioner.planner.throughput.units import Floats, Units

TOGETHER = 64
"""Columns of loads that are found by one product of matrices."""


def ideals(units: Units, most: int) -> list[int] | None:
    """All down-closed sets of the units, as bits, each after those within it; ``None`` if there are more than ``most``.

    Args:
        units: units that make no cycle, in any order.
        most: how many are too many.
    """
    if units.count >= most:  # as many as one order has, and the empty one
        return None
    needs = [0] * units.count
    for unit, followers in enumerate(units.after):
        for follower in followers:
            needs[follower] |= 1 << unit
    seen, layer = [0], {0: sum(1 << unit for unit, need in enumerate(needs) if not need)}
    while layer:
        further: dict[int, int] = {}
        for ideal, ready in layer.items():
            for unit in bits(ready):
                larger = ideal | 1 << unit
                if larger not in further:
                    freed = sum(1 << each for each in units.after[unit] if not needs[each] & ~larger)
                    further[larger] = ready & ~(1 << unit) | freed
            if len(seen) + len(further) > most:
                return None
        seen += sorted(further)
        layer = further
    return seen


class IdealCuts:
    """The ideals of the units as cut points.

    What stages send and receive is a product of matrices: a stage from ideal i to ideal j pays for a flow if what i has of the
    flow's units, and what j has, are such and such. With m that the maker is in an ideal, and r how many readers are:

        sent      (not m_i) and m_j, but not if r_i = 0 and r_j is all
        received  r_i = t and r_j > t for some t, but not if (not m_i) and m_j

    Args:
        park: units, which make no cycle, and processors.
        found: their ideals, each after those within it.
    """

    def __init__(self, park: Park, found: list[int]) -> None:
        units = park.units
        self._masks, self.size = found, len(found)
        self._overlap = units.problem.overlap
        width = -(-units.count // 8)
        octets = np.frombuffer(b"".join(ideal.to_bytes(width, "little") for ideal in found), np.uint8)
        within = np.unpackbits(octets.reshape(len(found), width), axis=1, count=units.count, bitorder="little").astype(bool)
        self._packed = np.packbits(within, axis=1)
        seconds = np.array([units.seconds[each.processors[0]] for each in park.classes])
        self._unable = (~np.isfinite(seconds)).astype(float) @ within.T
        self._compute = np.where(np.isfinite(seconds), seconds, 0.0) @ within.T
        self._memory = within @ units.memory
        self._caps = np.array([units.problem.caps[each.processors[0]] for each in park.classes])
        self._count_flows(park, within)
        self._moved: tuple[int, Floats] = (-1, np.zeros(0))

    def _count_flows(self, park: Park, within: Bits) -> None:
        """The left factors of what is sent and received, and what the right ones are made of."""
        sends = np.array([park.flow_seconds(*each.sends) for each in park.classes])
        receives = np.array([park.flow_seconds(*each.receives) for each in park.classes])
        numbers = np.flatnonzero(sends.any(axis=0) | receives.any(axis=0))
        flows = [park.units.flows[number] for number in numbers]
        self._made = within[:, [flow.maker for flow in flows]].astype(float)
        read = (
            np.array([within[:, list(flow.readers)].sum(axis=1) for flow in flows])
            .reshape(len(flows), -1 if flows else len(within))
            .T
        )
        self._all = (read == [len(flow.readers) for flow in flows]).astype(float)
        self._of = np.repeat(np.arange(len(flows)), [len(flow.readers) for flow in flows])
        times = np.concatenate([np.arange(len(flow.readers)) for flow in flows] or [np.zeros(0, dtype=int)])
        absent = 1.0 - self._made
        exactly = (read[:, self._of] == times).astype(float)
        self._more = (read[:, self._of] > times).astype(float)
        self._left = (np.hstack([absent, absent * (read == 0)]), np.hstack([exactly, absent[:, self._of] * exactly]))
        self._sends, self._receives = sends[:, numbers], receives[:, numbers[self._of]]

    def _moving(self, last: int) -> Floats:
        """What stages that end with an ideal send and receive: by side, class and first ideal. Found for some at once."""
        block, place = divmod(last, TOGETHER)
        if self._moved[0] != block:
            ends = slice(block * TOGETHER, (block + 1) * TOGETHER)
            made, more = self._made[ends], self._more[ends]
            right = (np.hstack([made, -made * self._all[ends]]), np.hstack([more, -made[:, self._of] * more]))
            prices = (np.tile(self._sends, 2), np.tile(self._receives, 2))
            none = np.zeros((min(ends.stop, self.size), len(made)))
            product = [
                [left[: ends.stop] @ (each * cost).T if cost.any() else none for cost in table]
                for left, each, table in zip(self._left, right, prices, strict=True)
            ]
            self._moved = (block, np.array(product))
        return np.maximum(self._moved[1][:, :, :last, place], 0.0)

    def column(self, last: int, limit: float, reached: Bits) -> tuple[Numbers, Floats]:
        """The loads of the stages that end with an ideal, on each class of processors."""
        short = ((self._compute[:, last : last + 1] - self._compute[:, :last]) <= limit * (1 + 1e-9)).any(axis=0)
        rows = np.flatnonzero(short & reached[:last])
        rows = rows[~(self._packed[rows] & ~self._packed[last]).any(axis=1)]
        sends, receives = self._moving(last)[:, :, rows]
        compute = self._compute[:, last : last + 1] - self._compute[:, rows]
        loads = joined(compute, sends, receives, self._overlap)
        loads[self._unable[:, last : last + 1] > self._unable[:, rows] + 0.5] = np.inf
        loads[self._memory[last] - self._memory[rows] > self._caps[:, None]] = np.inf
        return rows, loads

    def stage(self, first: int, last: int) -> list[int]:
        """The units that one ideal has more than another."""
        return bits(self._masks[last] & ~self._masks[first])
