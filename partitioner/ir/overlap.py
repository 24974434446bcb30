"""Does anything of a program run at the same time as anything else?"""

from __future__ import annotations

from bisect import bisect_right

from partitioner.ir.order import Order, happens_before
from partitioner.ir.program import Program, Run


def overlaps(program: Program) -> bool:
    """Whether two of its Runs are on different lanes with no order between them.

    Of another lane only the first Run that is not known to have ended can decide it: if that one waits for this one, so do
    all that come after it.
    """
    order = happens_before(program)
    runs: list[list[int]] = [[] for _ in program.lanes]
    for index, item in enumerate(program.instructions):
        if isinstance(item, Run):
            runs[item.lane].append(index)
    return any(_is_free_of(order, index, others) for mine in runs for index in mine for others in runs if others is not mine)


def _is_free_of(order: Order, index: int, others: list[int]) -> bool:
    """Whether a Run may run beside one of the Runs of another lane."""
    if not others:
        return False
    lane = order.program.instructions[others[0]].lane
    next_one = bisect_right(others, order.clocks[index][lane], key=order.ticks.__getitem__)
    return next_one < len(others) and not order.before(index, others[next_one])
