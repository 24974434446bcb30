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
        after: the numbers of the segments that it comes after: the one before on its lane, and those for which that waits.
    """

    name: str
    lane: int
    tasks: tuple[str, ...]
    wide: bool = False
    after: tuple[int, ...] = ()


def segments(program: Program, wide: Collection[str] = ()) -> tuple[Segment, ...]:
    """The segments of a program that has its events, in the order in which they begin.

    Args:
        program: with its copies and events; frees hand nothing over.
        wide: the tasks that have all threads of their device; a segment holds only such, or none.

    Example:
        >>> from partitioner.ir.machine import Lane
        >>> lanes = (Lane("cpu/0", "cpu", "cpu"), Lane("cpu/1", "cpu", "cpu"))
        >>> items = (Run(0, "a", (), ()), Record(0, 0), Wait(1, 0), Run(1, "b", (), ()), Run(0, "c", (), ()))
        >>> [(one.tasks, one.after) for one in segments(Program("Toy", lanes, (), (), (), items))]
        [(('a',), ()), (('b',), (0,)), (('c',), (0,))]
    """
    open_: dict[int, int] = {}
    latest: dict[int, int] = {}
    recorded: dict[int, int] = {}
    waited: defaultdict[int, list[int]] = defaultdict(list)
    found: list[tuple[int, list[str], list[int]]] = []
    for item in program.instructions:
        if isinstance(item, Run):
            number = open_.get(item.lane)
            if number is not None and (found[number][1][-1] in wide) == (item.task in wide):
                found[number][1].append(item.task)
            else:
                before = [latest[item.lane]] if item.lane in latest else []
                latest[item.lane] = open_[item.lane] = len(found)
                found.append((item.lane, [item.task], [*before, *waited.pop(item.lane, ())]))
        elif isinstance(item, Record | Wait | Copy):
            open_.pop(item.lane, None)
            if isinstance(item, Record) and item.lane in latest:
                recorded[item.event] = latest[item.lane]
            elif isinstance(item, Wait) and item.event in recorded:
                waited[item.lane].append(recorded[item.event])
    return tuple(
        Segment(f"s{number}", lane, tuple(tasks), tasks[0] in wide, tuple(dict.fromkeys(after)))
        for number, (lane, tasks, after) in enumerate(found)
    )


def wide_tasks(placement: Assignment) -> frozenset[str]:
    """The tasks that have all threads of their device."""
    return frozenset(name for name, threads in zip(placement.tasks, placement.threads, strict=False) if threads)
