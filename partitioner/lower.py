"""From Runs to a whole program: copies, events, frees. Each pass is a function from Program to Program.

    insert_copies   a value read on another device is copied there, once per device
    insert_syncs    what the hazard rule orders across lanes is ordered by an event
    prune_waits     what happens-before already knows need not be waited for
    insert_frees    a value is given up where its home lane knows that every reader is done

They run in this order; `insert_frees` needs the waits to be final, for it adds none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

from partitioner.analysis.conflicts import conflicts, free_lanes, issued_in_order, maker, storage_users
from partitioner.analysis.order import happens_before
from partitioner.ir.graph import Access
from partitioner.ir.program import Copy, Free, Instruction, Program, Record, Run, Value, Wait

Lowering = Callable[[Program], Program]


def insert_copies(program: Program) -> Program:
    """Copy every value to each other device that reads it, on the lane that reads it first."""
    pass_ = _Copies(program)
    instructions = tuple(new for old in program.instructions for new in pass_.rewrite(old))
    return _replaced(program, instructions, tuple(pass_.values.values()))


def _replaced(program: Program, instructions: tuple[Instruction, ...], values: tuple[Value, ...] | None = None) -> Program:
    values = program.values if values is None else values
    return Program(program.name, program.lanes, values, program.inputs, program.outputs, instructions)


class _Copies:
    """Remembers what has been copied where, and what a storage is called by a Run that reads copies.

    An op that views a value views the copy that it was given. So resources are renamed: a copy stands for every storage that
    its source may share, and a Run touches the copies among what it reads. Where the storage itself lies, it may touch that,
    too: a value can be copied away, viewed there, and the view be copied back.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values = {value.name: value for value in program.values}
        self.home: dict[str, str] = {name: self.values[name].device for name in program.inputs}
        self.stands_for: dict[str, tuple[str, ...]] = {}

    def rewrite(self, instruction: Instruction) -> Iterator[Instruction]:
        if not isinstance(instruction, Run):
            yield instruction
            return
        device = self.program.lanes[instruction.lane].torch_device
        for access in instruction.touches:
            self.home.setdefault(access.resource, device)
        reads = []
        for name in instruction.reads:
            if self.values[name].device in ("", device):
                reads.append(name)
                continue
            copy = f"{name}@{device}"
            if copy not in self.values:
                yield Copy(instruction.lane, name, copy)
                self.values[copy] = Value(copy, device, self.values[name].bytes, (copy,))
                self.stands_for[copy] = self.program.by_name[name].storages
            reads.append(copy)
        seen = {storage for name in reads for storage in self.values[name].storages}
        for name in instruction.writes:
            value = self.values[name]
            storages = sorted(there for storage in value.storages for there in self._there(storage, device, seen))
            self.values[name] = Value(name, value.device, value.bytes, tuple(dict.fromkeys(storages)))
        yield Run(
            instruction.lane,
            instruction.task,
            tuple(reads),
            instruction.writes,
            self._renamed(instruction.touches, device, seen),
        )

    def _there(self, storage: str, device: str, seen: set[str]) -> set[str]:
        """What ``storage`` is called by a Run on ``device`` that reads values with the storages ``seen``."""
        copies = {copy for copy in seen if storage in self.stands_for.get(copy, ())}
        return copies | {storage} if self.home.get(storage, device) == device else copies or {storage}

    def _renamed(self, touches: tuple[Access, ...], device: str, seen: set[str]) -> tuple[Access, ...]:
        modes: dict[str, bool] = {}
        for access in touches:
            for resource in self._there(access.resource, device, seen):
                modes[resource] = modes.get(resource, False) or access.write
        return tuple(Access(resource, write) for resource, write in sorted(modes.items()))


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
    return _replaced(program, tuple(result))


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
    return _replaced(program, _renumbered(kept))


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


def insert_frees(program: Program) -> Program:
    """Give every value up at the first point at which a lane that may free it knows that all of its readers are done.

    Memory goes back to the lane that allocated it, so on an accelerator that lane must know; it is never made to wait for
    that. What no lane learns in time is freed at the end, on lane 0, which has waited for everybody.
    """
    spots = _Spots(program)
    users, makers = storage_users(program), maker(program)
    placed: defaultdict[int, list[Free]] = defaultdict(list)
    last = len(program.instructions)
    kept = {*program.outputs, *program.inputs}
    for value in program.values:
        if value.name not in kept:
            found = (spots.first(lane, users[value.name]) for lane in free_lanes(program, value, makers))
            index, lane = min(found, default=(last, 0))
            placed[index].append(Free(0 if index == last else lane, value.name))
    result: list[Instruction] = []
    for index, item in enumerate(program.instructions):
        result.append(item)
        result += placed[index]
    return _replaced(program, (*result, *placed[last]))


class _Spots:
    """Finds, on a lane, the first point that comes after given instructions. Clocks of a lane only grow: binary search."""

    def __init__(self, program: Program) -> None:
        self.program, self.order = program, happens_before(program)
        self.on_lane: list[list[int]] = [[] for _ in program.lanes]
        for index, item in enumerate(program.instructions):
            self.on_lane[item.lane].append(index)

    def first(self, lane: int, users: list[int]) -> tuple[int, int]:
        """``(index, lane)`` of the first instruction of ``lane`` after which all ``users`` are known to be done."""
        need = [0] * len(self.program.lanes)
        for user in users:
            home = self.program.instructions[user].lane
            need[home] = max(need[home], self.order.ticks[user])

        def known(index: int) -> bool:
            clock, tick = self.order.clocks[index], self.order.ticks[index]
            return all((tick if other == lane else clock[other]) >= need[other] for other in range(len(need)))

        indices = self.on_lane[lane]
        spot = bisect_left(indices, True, key=known)
        return (indices[spot], lane) if spot < len(indices) else (len(self.program.instructions), lane)


LOWERINGS: tuple[Lowering, ...] = (insert_copies, insert_syncs, prune_waits, insert_frees)
