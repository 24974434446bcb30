"""Cut points along one order of the units, with the loads of all stages between them.

    order   a  b  c  d          a flow from b to c and d is sent by a stage [i, j) with  i <= 1 < j <= 3,
    place   0  1  2  3          and received by one with  i = 2 < j,  or  i = 3 < j

What a flow costs stages is so a few rectangles in the plane of their ends, and a column of loads is a sum over the rectangles
that it crosses: kept as differences, which change only where a rectangle begins or ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partitioner.planner.throughput.prices import Park
from partitioner.planner.throughput.stages import Bits, Numbers, joined
from partitioner.planner.throughput.units import Floats, Units


@dataclass(frozen=True, eq=False)
class Rectangles:
    """Stages ``[i, j)`` that pay for a flow: first and last ``i``, first and last ``j``, the flow, 1 if received."""

    first_low: Numbers
    first_high: Numbers
    last_low: Numbers
    last_high: Numbers
    flow: Numbers
    received: Numbers


def rectangles(units: Units, order: Sequence[int]) -> Rectangles:
    """All rectangles of an order of the units."""
    place = [0] * units.count
    for number, unit in enumerate(order):
        place[unit] = number
    end, rows = len(order), []
    for number, flow in enumerate(units.flows):
        maker, readers = place[flow.maker], sorted(place[reader] for reader in flow.readers)
        low, high = min(readers[0], maker), max(readers[-1], maker)
        rows.append((0, low, maker + 1, high, number, 0))
        rows.append((low + 1, maker, maker + 1, end, number, 0))
        previous = maker
        for reader in readers:
            if reader > maker:
                rows.append((previous + 1, reader, reader + 1, end, number, 1))
                previous = reader
        following = maker
        for reader in reversed(readers):
            if reader < maker:
                rows.append((0, reader, reader + 1, following, number, 1))
                following = reader
    table = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    return Rectangles(*table)


class LineCuts:
    """The cut points of one order, or some of them.

    Args:
        park: units, which make no cycle, and processors.
        order: the units.
        known: the rectangles of the order.
        points: the places before which may be cut, from 0 to the number of units.
    """

    def __init__(self, park: Park, order: Sequence[int], known: Rectangles, points: Numbers) -> None:
        self.order, self.points, self.size = order, points, len(points)
        self._overlap = park.units.problem.overlap
        sequence = np.asarray(order, dtype=np.int64)
        seconds = np.array([park.units.seconds[each.processors[0]][sequence] for each in park.classes])
        self._unable = _prefix(~np.isfinite(seconds))[:, points]
        self._compute = _prefix(np.where(np.isfinite(seconds), seconds, 0.0))[:, points]
        self._memory = _prefix(park.units.memory[sequence][None])[0, points]
        self._caps = np.array([park.units.problem.caps[each.processors[0]] for each in park.classes])
        self._difference = np.zeros((2, len(park.classes), self.size + 1))
        self._prepare(park, known)

    def _prepare(self, park: Park, known: Rectangles) -> None:
        """Sort the beginnings and ends of rectangles by the column from which they count."""
        left = np.searchsorted(self.points, known.first_low, "left")
        right = np.searchsorted(self.points, known.first_high, "right")
        begin = np.searchsorted(self.points, known.last_low, "left")
        end = np.searchsorted(self.points, known.last_high, "right")
        seen = (left < right) & (begin < end)
        prices = [
            np.array([park.flow_seconds(*each.sends) for each in park.classes]).reshape(len(park.classes), -1),
            np.array([park.flow_seconds(*each.receives) for each in park.classes]).reshape(len(park.classes), -1),
        ]
        table = np.stack(prices)[known.received[seen], :, known.flow[seen]]
        column = np.concatenate([begin[seen], end[seen]])
        by_column = np.argsort(column, kind="stable")
        self._starts = 2 * np.searchsorted(column[by_column], np.arange(self.size + 2))
        rows = np.tile(known.received[seen], 2)[by_column, None, None] * len(park.classes) + np.arange(len(park.classes))
        ends = np.stack([np.tile(left[seen], 2)[by_column], np.tile(right[seen], 2)[by_column]], axis=1)[:, :, None]
        weight = np.concatenate([table, -table])[by_column]
        self._changed = (rows * (self.size + 1) + ends).reshape(-1, len(park.classes))
        self._weight = np.stack([weight, -weight], axis=1).reshape(-1, len(park.classes))

    def again(self) -> LineCuts:
        """Itself, from the first column on."""
        self._difference[:] = 0.0
        return self

    def column(self, last: int, limit: float, reached: Bits) -> tuple[Numbers, Floats]:
        """The loads of the stages that end before a cut point, on each class of processors."""
        now = slice(self._starts[last - 1] if last == 1 else self._starts[last], self._starts[last + 1])
        np.add.at(self._difference.reshape(-1), self._changed[now].ravel(), self._weight[now].ravel())
        spent = (self._compute[:, last : last + 1] - self._compute[:, :last]).min(axis=0)
        begin = int(np.searchsorted(-spent, -limit * (1 + 1e-9)))
        sends, receives = self._difference[:, :, :last].cumsum(axis=2)[:, :, begin:]
        compute = self._compute[:, last : last + 1] - self._compute[:, begin:last]
        loads = joined(compute, sends, receives, self._overlap)
        loads[self._unable[:, last : last + 1] > self._unable[:, begin:last]] = np.inf
        loads[self._memory[last] - self._memory[begin:last] > self._caps[:, None]] = np.inf
        return np.arange(begin, last), loads

    def stage(self, first: int, last: int) -> list[int]:
        """The units between two cut points."""
        return list(self.order[int(self.points[first]) : int(self.points[last])])


def _prefix(table: Floats | Bits) -> Floats:
    """Sums of the first 0, 1, 2, ... entries of each row."""
    return np.concatenate([np.zeros((len(table), 1)), np.cumsum(table, axis=1)], axis=1)
