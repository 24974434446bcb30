"""Segments of a program: what a lane runs between two hand-offs. Gradients are handed over between them, the other way round.

    lane 0   run t0 . record e1 . run t2 . wait e2 . run t4        s0 = [t0]   s2 = [t2]   s3 = [t4]
    lane 1   wait e1 . run t1 . run t3 . record e2                 s1 = [t1, t3]

A lane that records an event, waits for one or copies ends its segment there, so a segment begins when all that it reads is
made, and nobody reads what it makes before it has ended. Two segments never need each other, in either direction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from partitioner.ir.assignment import Assignment
from partitioner.ir.program import Copy, Program, Record, Run, Wait


@dataclass(frozen=True)
class Segment:
    """Tasks that a lane runs without a hand-off between them.

    Args:
        name: ``s0``, ``s1``, ... in the order in which they begin.
        lane: the number of their lane.
        tasks: in the order in which they run.
        wide: whether each of them has all threads of its device.
    """

    name: str
    lane: int
    tasks: tuple[str, ...]
    wide: bool = False


def segments(program: Program, wide: Collection[str] = ()) -> tuple[Segment, ...]:
    """The segments of a program that has its events, in the order in which they begin.

    Args:
        program: with its copies and events; frees hand nothing over.
        wide: the tasks that have all threads of their device; a segment holds only such, or none.

    Example:
        >>> from partitioner.ir.machine import Lane
        >>> lanes = (Lane("cpu/0", "cpu", "cpu"), Lane("cpu/1", "cpu", "cpu"))
        >>> items = (Run(0, "a", (), ()), Record(0, 0), Wait(1, 0), Run(1, "b", (), ()), Run(0, "c", (), ()))
        >>> [one.tasks for one in segments(Program("Toy", lanes, (), (), (), items))]
        [('a',), ('b',), ('c',)]
    """
    open_: dict[int, int] = {}
    found: defaultdict[int, list[str]] = defaultdict(list)
    lane_of: list[int] = []
    for item in program.instructions:
        if isinstance(item, Record | Wait | Copy):
            open_.pop(item.lane, None)
        elif isinstance(item, Run):
            number = open_.get(item.lane)
            if number is None or (found[number][-1] in wide) != (item.task in wide):
                number = open_[item.lane] = len(lane_of)
                lane_of.append(item.lane)
            found[number].append(item.task)
    return tuple(
        Segment(f"s{number}", lane, tuple(found[number]), found[number][0] in wide) for number, lane in enumerate(lane_of)
    )


def wide_tasks(placement: Assignment) -> frozenset[str]:
    """The tasks that have all threads of their device."""
    return frozenset(name for name, threads in zip(placement.tasks, placement.threads, strict=False) if threads)
