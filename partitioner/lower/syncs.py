"""Events: what the hazard rule orders across lanes waits for one, unless happens-before knows it already."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from partitioner.ir.conflicts import conflicts, issued_in_order
from partitioner.ir.order import idle_waits
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
    """Drop each Wait for work that its lane knows to be done already, then each Record that nobody waits for."""
    idle = idle_waits(program)
    kept = [item for index, item in enumerate(program.instructions) if index not in idle]
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
