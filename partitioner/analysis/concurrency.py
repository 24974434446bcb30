"""Which CPU tasks have the cores to themselves."""

from __future__ import annotations

from bisect import bisect_left

from partitioner.analysis.order import happens_before
from partitioner.ir.program import Program, Run


def runs_alone(program: Program) -> dict[int, bool]:
    """For each Run on a CPU lane, by index: whether no Run of another CPU lane may be going on at the same time."""
    order = happens_before(program)
    lanes: dict[int, list[int]] = {number: [] for number, lane in enumerate(program.lanes) if lane.kind == "cpu"}
    for index, item in enumerate(program.instructions):
        if isinstance(item, Run) and item.lane in lanes:
            lanes[item.lane].append(index)
    alone: dict[int, bool] = {}
    for lane, indices in lanes.items():
        others = [other for number, other in lanes.items() if number != lane]
        for index in indices:
            alone[index] = not any(_overlaps(other, index, order.before) for other in others)
    return alone


def _overlaps(others: list[int], index: int, before: object) -> bool:
    """Whether a Run of ``others`` is neither known to end before ``index`` nor to start after it.

    A lane is ordered: those that end before form a prefix of it, those that start after a suffix.
    """
    assert callable(before)
    ended = bisect_left(others, True, key=lambda other: not before(other, index))
    started = bisect_left(others, True, key=lambda other: bool(before(index, other)))
    return ended < started
