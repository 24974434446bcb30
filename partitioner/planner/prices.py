"""What a second of each processor is worth, where tasks take longer on some than on others.

    seconds    fast  1  1  1        price  0.75     the fast one would have too much to do, so its time costs more;
               slow  3  3  3               0.25     at these prices no task wastes anything anywhere

The prices of all lanes add up to 1, so a schedule does at most 1 priced second of work in a second: linear programming duality,
for the relaxation in which tasks may be divided among processors and wait for nothing. Where memory is scarce its bytes have
prices, too: without them, tasks crowd where they are fast, and the search begins with memory that fits nobody.

Source of the relaxation: Lenstra, Shmoys and Tardos, "Approximation algorithms for scheduling unrelated parallel machines",
Mathematical Programming 46, 1990.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from partitioner.ir.problem import Problem
from partitioner.planner.once import once

Table = NDArray[np.float64]

RENT = 0.3
"""By how much the rent of memory changes beside the price of time."""


@once
def lane_counts(problem: Problem) -> Table:
    """Lanes of each processor."""
    return np.array([each.lanes for each in problem.processors], dtype=float)


@once
def able_seconds(problem: Problem) -> Table:
    """Seconds by processor and task; infinite where the task's group cannot go."""
    table = np.array([list(row) for row in problem.seconds], dtype=float).reshape(len(problem.processors), len(problem.tasks))
    for group, tasks in problem.members.items():
        if len(tasks) > 1 or group in problem.pin or problem.demand[group]:
            able = problem.able[group]
            if len(able) < len(table):
                for task in tasks:
                    kept = table[able, task]
                    table[:, task] = inf
                    table[able, task] = kept
    return table


def prices(cost: Table, capacity: Table) -> Table:
    """Of a lane of each processor: those at which the least work of all tasks is large.

    Args:
        cost: seconds by processor and task.
        capacity: lanes of each processor.

    >>> prices(np.array([[1.0] * 8, [3.0] * 8]), np.ones(2)).round(2)
    array([0.75, 0.25])
    """
    return rents(cost, capacity, np.zeros(cost.shape[1]), np.full(len(cost), inf))[0]


def rents(cost: Table, capacity: Table, held: Table, room: Table) -> tuple[Table, Table]:
    """`prices`, and what a byte of each processor costs, so that what all tasks pay, without what all bytes cost, is large.

    They are found by steps towards the processors that would have too much to do or to hold. Those of prices multiply; those of
    rents add, for where memory suffices its rent is 0.

    Args:
        cost: seconds by processor and task.
        capacity: lanes of each processor.
        held: bytes of each task.
        room: bytes of each processor.
    """
    number, cost, capacity, room = _merged(cost, capacity, room)
    price, scarce = np.full(len(cost), 1.0 / capacity.sum()), (room > 0.0) & (room < held.sum())
    turns, most = int(min(150, max(3, 40_000_000 / cost.size))) if len(cost) > 1 and cost.size else 0, -1.0
    rent, room = np.zeros(len(cost)), np.where(scarce, room, 1.0)
    best = price, rent
    for scarcely in (False, True) if scarce.any() else (False,):
        price, rent = best
        for turn in range(turns):
            paid = owed(cost, price, held, rent)
            choice, total = paid.argmin(axis=0), float(paid.min(axis=0).sum() - (rent * room).sum())
            if total > most:
                best, most = (price, rent), total
            if not 0 < total < inf:
                break
            load = np.bincount(choice, weights=cost[choice, np.arange(cost.shape[1])], minlength=len(cost)) / capacity
            step = 0.5 / (1 + turn / 4)
            price = price * np.exp(step * np.clip(load / total - 1.0, -2.0, 2.0))
            price = price / (price * capacity).sum()
            if scarcely:
                full = np.bincount(choice, weights=held, minlength=len(cost)) / room
                rent = np.where(
                    scarce, np.maximum(0.0, rent + RENT * step * total / room * np.clip(full - 1.0, -2.0, 2.0)), 0.0
                )
    return best[0][number], best[1][number]


def least_paid(cost: Table, held: Table, room: Table, price: Table, rent: Table) -> float:
    """Seconds that no placement beats at these prices: it pays for no more time and bytes than processors have.

    >>> cost, held, room = np.array([[1.0] * 8, [3.0] * 8]), np.ones(8), np.array([4.0, 8.0])
    >>> least_paid(cost, held, room, *rents(cost, np.ones(2), held, room)) > 6.0  # no more than 4 fit on the first
    True
    """
    return float(owed(cost, price, held, rent).min(axis=0).sum() - (rent * np.where(rent > 0, room, 0.0)).sum())


def owed(cost: Table, price: Table, held: Table, rent: Table) -> Table:
    """By processor and task, what a task pays for time and bytes."""
    return cost * price[:, None] + (held * rent[:, None] if rent.any() else 0.0)


@once
def lane_prices(problem: Problem) -> Table:
    """`prices` of a problem; where all memory suffices, those of its rents, which are all 0."""
    return prices(able_seconds(problem), lane_counts(problem)) if problem.crowded else lane_rents(problem)[0]


@once
def lane_rents(problem: Problem) -> tuple[Table, Table, Table]:
    """`rents` of a problem, and the bytes of each task."""
    held = np.array(problem.memory or [0.0] * len(problem.tasks), dtype=float)
    return *rents(able_seconds(problem), lane_counts(problem), held, np.array(problem.caps)), held


@once
def least_work(problem: Problem) -> Table:
    """Of each task, where it is least at `lane_prices`."""
    work: Table = (able_seconds(problem) * lane_prices(problem)[:, None]).min(axis=0)
    return work


@once
def waste(problem: Problem) -> Table:
    """By task and processor, the seconds that all lanes lose if the task, and its group, run there and not where they should.

    What a task takes longer on one processor than on another is in its own end. That all that comes after it on the same
    processor is late, too, is not.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> kinds = Kind("one", {1: [2.0, 6.0]}), Kind("other", {1: [6.0, 2.0]})
    >>> waste(Problem("two", ("a", "b"), kinds, (Processor("p", 0), Processor("q", 1)), [])).tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    together = [tasks for tasks in problem.members.values() if len(tasks) > 1]
    price, rent, held = lane_rents(problem)
    return wasted(owed(able_seconds(problem), price, held, rent) * lane_counts(problem).sum(), together)


def wasted(paid: Table, together: Sequence[list[int]] = ()) -> Table:
    """`waste` of what each task would pay by processor: for the tasks of ``together`` what all of them lose.

    >>> wasted(np.array([[2.0, 6.0], [6.0, 2.0]])).tolist()
    [[0.0, 4.0], [4.0, 0.0]]
    """
    paid = paid.T.copy()
    for tasks in together:
        paid[tasks] = paid[tasks].sum(axis=0)
    least = paid.min(axis=1, keepdims=True)
    lost = paid - np.where(np.isfinite(least), least, 0.0)
    found: Table = np.where(np.isfinite(lost), lost, 0.0)
    return found


def _merged(cost: Table, capacity: Table, room: Table) -> tuple[list[int], Table, Table, Table]:
    """Processors on which every task costs the same, as one; and where each is then."""
    number: dict[bytes, int] = {}
    place = [number.setdefault(row.tobytes(), len(number)) for row in cost]
    first = [place.index(each) for each in range(len(number))]
    return (
        place,
        cost[first],
        np.bincount(place, weights=capacity).astype(float),
        np.bincount(place, weights=room).astype(float),
    )
