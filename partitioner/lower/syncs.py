"""Events: what the hazard rule orders across lanes waits for one, unless happens-before knows it already."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from partitioner.ir.conflicts import conflicts, issued_in_order
from partitioner.ir.program import Instruction, Program, Record, Wait


def insert_syncs(program: Program) -> Program:
    """Order across lanes, by events, whatever the hazard rule orders; and begin and end everything on lane 0."""
    items = program.instructions
    needs: defaultdict[int, list[int]] = defaultdict(list)
    for earlier, later in conflicts(program):
        if items[earlier].lane != items[later].lane and not issued_in_order(program, earlier, later):
            needs[later].append(earlier)
    recorded = sorted({earlier for sources in needs.values() for earlier in sources})
    event = {index: number for number, index in enumerate(recorded, 1)}
    last = {item.lane: index for index, item in enumerate(items)}
    result: list[Instruction] = [Record(0, 0)] if last.keys() - {0} else []
    begun = {0}
    for index, item in enumerate(items):
        if item.lane not in begun:
            begun.add(item.lane)
            result.append(Wait(item.lane, 0))
        # The latest first: it may know of the earlier ones, never the other way round, and then those are pruned.
        result += (Wait(item.lane, event[earlier]) for earlier in sorted(needs[index], reverse=True))
        result.append(item)
        if index in event:
            result.append(Record(item.lane, event[index]))
    for number, lane in enumerate(sorted(begun - {0}, key=last.__getitem__, reverse=True), len(event) + 1):
        result += [Record(lane, number), Wait(0, number)]
    return replace(program, instructions=tuple(result))


def prune_waits(program: Program) -> Program:
    """Drop each Wait for work that its lane knows to be done already, then each Record that nobody waits for.

    A clock here counts work only: what a lane knows of events is of no use to it.
    """
    lanes = len(program.lanes)
    now = [[0] * lanes for _ in range(lanes)]
    now[0][0] = 1  # what the caller did before, which no other lane knows of until it waits for event 0
    events: dict[int, list[int]] = {}
    kept: list[Instruction] = []
    for item in program.instructions:
        clock = now[item.lane]
        if isinstance(item, Wait):
            seen = events.get(item.event)
            if seen is not None and all(mine >= theirs for mine, theirs in zip(clock, seen, strict=True)):
                continue
            if seen is not None:
                clock[:] = map(max, clock, seen)
        elif isinstance(item, Record):
            events[item.event] = list(clock)
        else:
            clock[item.lane] += 1
        kept.append(item)
    waited = {item.event for item in kept if isinstance(item, Wait)}
    kept = [item for item in kept if not isinstance(item, Record) or item.event in waited]
    return replace(program, instructions=_renumbered(kept))


def _renumbered(items: list[Instruction]) -> tuple[Instruction, ...]:
    number: dict[int, int] = {}
    result: list[Instruction] = []
    for item in items:
        match item:
            case Record(lane=lane, event=event):
                result.append(Record(lane, number.setdefault(event, len(number))))
            case Wait(lane=lane, event=event):
                result.append(Wait(lane, number.setdefault(event, len(number))))
            case _:
                result.append(item)
    return tuple(result)
