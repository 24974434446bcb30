"""A value that is read on another device is copied there, once per device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partitioner.ir.access import Access, merged
from partitioner.ir.program import Copy, Instruction, Program, Run, Value


def insert_copies(program: Program) -> Program:
    """Copy every value to each other device that reads it, on the lane that reads it first."""
    pass_ = _Copies(program)
    instructions = tuple(new for old in program.instructions for new in pass_.rewrite(old))
    return replace(program, instructions=instructions, values=tuple(pass_.values.values()))


class _Copies:
    """Remembers what has been copied where, and what a storage is called by a Run that reads copies.

    An op that views a value views the copy that it was given. So resources are renamed: a copy stands for every storage that
    its source may share, and a Run touches the copies among what it reads. Where the storage itself lies, it may touch that,
    too: a value can be copied away, viewed there, and the view be copied back.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values = {value.name: value for value in program.values}
        self.home: dict[str, str] = {name: self.values[name].torch_device for name in program.inputs}
        self.inputs = {name: place for place, name in enumerate(program.inputs)}
        self.issued, self.written = 0, dict.fromkeys(program.inputs, 0)
        self.stands_for: dict[str, tuple[str, ...]] = {}

    def rewrite(self, instruction: Instruction) -> Iterator[Instruction]:
        """A Run that reads copies where its lane needs them, behind those that it is the first to need; others as they are."""
        if not isinstance(instruction, Run):
            yield instruction
            return
        device = self.program.lanes[instruction.lane].torch_device
        for access in instruction.touches:
            self.home.setdefault(access.resource, device)
        here = {
            name: name if self.values[name].torch_device in ("", device) else f"{name}@{device}" for name in instruction.reads
        }
        for name in sorted(here, key=self._made):
            if here[name] not in self.values:
                yield Copy(instruction.lane, name, here[name])
                self.values[here[name]] = Value(here[name], device, self.values[name].bytes, (here[name],))
                self.stands_for[here[name]] = self.program.by_name[name].storages
        reads = [here[name] for name in instruction.reads]
        self.issued += 1
        written = [access.resource for access in instruction.touches if access.write]
        self.written |= dict.fromkeys([*instruction.writes, *written], self.issued)
        seen = {storage for name in reads for storage in self.values[name].storages}
        for name in instruction.writes:
            value = self.values[name]
            storages = sorted(there for storage in value.storages for there in self._there(storage, device, seen))
            self.values[name] = Value(name, value.torch_device, value.bytes, tuple(dict.fromkeys(storages)))
        touched = (Access(there, one.write) for one in instruction.touches for there in self._there(one.resource, device, seen))
        yield replace(instruction, reads=tuple(reads), touches=merged(touched))

    def _made(self, name: str) -> tuple[int, int]:
        """What is there first is copied first: arguments of the call, then what was issued first."""
        storages = self.program.by_name[name].storages
        return max(self.written.get(each, 0) for each in (name, *storages)), self.inputs.get(name, 0)

    def _there(self, storage: str, device: str, seen: set[str]) -> set[str]:
        """What ``storage`` is called by a Run on ``device`` that reads values with the storages ``seen``."""
        copies = {copy for copy in seen if storage in self.stands_for.get(copy, ())}
        return copies | {storage} if self.home.get(storage, device) == device else copies or {storage}
