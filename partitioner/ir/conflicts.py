"""Which instructions of a program conflict, who uses a value, and where its memory belongs.

The lowerings put in what these answers ask for, and the verifier checks against the same answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from partitioner.ir.access import ANY, RNG, hazards, modes
from partitioner.ir.program import Copy, Free, Program, Run, Value


def conflicts(program: Program) -> Iterator[tuple[int, int]]:
    """Pairs of Runs and Copies, by index, that must keep their order. Events and Frees touch nothing, not even `ANY`."""
    items = enumerate(program.instructions)
    return hazards((index, program.accesses(item)) for index, item in items if isinstance(item, Run | Copy))


def issued_in_order(program: Program, earlier: int, later: int) -> bool:
    """Whether only a random generator orders two instructions on accelerators.

    There the generator's state advances when the host issues an op, not when a kernel runs, so issue order is enough.
    """
    one, other = program.instructions[earlier], program.instructions[later]
    if "cpu" in (program.lanes[one.lane].kind, program.lanes[other.lane].kind):
        return False
    mine, theirs = modes(program.accesses(one)), modes(program.accesses(other))
    shared = {resource for resource in mine.keys() & theirs.keys() if mine[resource] or theirs[resource]}
    return ANY not in mine and ANY not in theirs and shared == {RNG}


def stale_uses(program: Program) -> Iterator[tuple[int, int, int]]:
    """Uses of a copy after a storage of its source was written: ``(copy, write, use)``, by index."""
    writer: dict[str, int] = {}
    copies: dict[str, tuple[int, tuple[str, ...]]] = {}
    for index, item in enumerate(program.instructions):
        if not isinstance(item, Run | Copy):
            continue
        accesses = program.accesses(item)
        touched = dict.fromkeys(access.resource.removeprefix("%") for access in accesses)  # the value, or a view of it
        for copied, storages in (copies[name] for name in touched if name in copies):
            written = max((writer.get(storage, -1) for storage in storages), default=-1)
            if written > copied:
                yield copied, written, index
        writer.update((access.resource, index) for access in accesses if access.write)
        if isinstance(item, Copy):
            copies[item.target] = index, program.by_name[item.source].storages


def storage_users(program: Program) -> Mapping[str, list[int]]:
    """For each value: the instructions that touch it or a storage that it may share."""
    by_resource: defaultdict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(program.instructions):
        if not isinstance(item, Free):
            for access in program.accesses(item):
                by_resource[access.resource].append(index)
    found = {}
    for value in program.values:
        names = (f"%{value.name}", *value.storages)
        found[value.name] = sorted({index for name in names for index in by_resource[name]})
    return found


def free_lanes(program: Program, value: Value, makers: Mapping[str, int]) -> list[int]:
    """The lanes that may free a value in the middle of a program.

    On a CPU any lane may. On an accelerator only the lane that allocated its storage; where a value may share storages of
    several lanes there is none, and it has to wait for the end.
    """
    if value.torch_device in ("", "cpu"):
        return [n for n, lane in enumerate(program.lanes) if lane.kind == "cpu"] or [0]
    lanes = {makers[storage] for storage in value.storages if storage in makers}
    return list(lanes) if len(lanes) == 1 else []


def allocators(program: Program) -> Mapping[str, int]:
    """The lane that first writes each resource."""
    found: dict[str, int] = {}
    for item in program.instructions:
        if isinstance(item, Run | Copy):
            for access in program.accesses(item):
                if access.write:
                    found.setdefault(access.resource, item.lane)
    return found
