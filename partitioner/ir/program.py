"""The plan as instructions: what every lane does, in one total issue order.

Five instructions, each bound to a lane. A lane runs its instructions in order; two lanes agree only through events.

    Run     call a task
    Copy    make a value readable on the lane's device
    Record  mark this point of the lane; each event is recorded once
    Wait    go on only after the event's point has passed on its lane
    Free    give up the program's reference to a value

Lane 0 is the caller's: inputs are ready there when the program starts, and outputs are ready there when it ends. A program
prints as text, and `parse` reads the text back: ``parse(str(program)) == program``.

    program TwoTowers
    lane 0 cpu/0 cpu
    lane 1 cpu/1 cpu
    value x cpu 64 x
    value a cpu 64 a
    input x
    output a
    0 record e0
    1 wait e0
    1 run t0 (x) -> (a) r:x w:a
    ...
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote

from partitioner.ir.access import Access
from partitioner.ir.machine import Lane


@dataclass(frozen=True)
class Value:
    """A named result.

    Args:
        name: the op or input that it comes from; a copy is called ``<name>@<torch device>``.
        torch_device: that it lies on; ``""`` for what is no tensor and can be read anywhere.
        bytes: its size.
        storages: the storages it may share with other values.
    """

    name: str
    torch_device: str
    bytes: int
    storages: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Call ``task``. ``touches`` are the task's accesses, on this lane's device."""

    lane: int
    task: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    touches: tuple[Access, ...] = ()

    def __str__(self) -> str:
        arrow = f"({', '.join(map(_word, self.reads))}) -> ({', '.join(map(_word, self.writes))})"
        touches = (f"{'w' if each.write else 'r'}:{_word(each.resource)}" for each in self.touches)
        return " ".join([f"{self.lane} run {_word(self.task)} {arrow}", *touches])


@dataclass(frozen=True)
class Copy:
    """Copy ``source`` to the device of this lane, as ``target``."""

    lane: int
    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.lane} copy {_word(self.source)} -> {_word(self.target)}"


@dataclass(frozen=True)
class Record:
    """Record ``event`` on the lane."""

    lane: int
    event: int

    def __str__(self) -> str:
        return f"{self.lane} record e{self.event}"


@dataclass(frozen=True)
class Wait:
    """Hold the lane until ``event`` has happened."""

    lane: int
    event: int

    def __str__(self) -> str:
        return f"{self.lane} wait e{self.event}"


@dataclass(frozen=True)
class Free:
    """Drop the program's reference to ``value``; its memory goes back to the lane that made it."""

    lane: int
    value: str

    def __str__(self) -> str:
        return f"{self.lane} free {_word(self.value)}"


Instruction = Run | Copy | Record | Wait | Free


def original(value: str) -> str:
    """The value that a copy was made of; any other is its own.

    >>> original("relu@cuda:1"), original("relu")
    ('relu', 'relu')
    """
    return value.partition("@")[0]


def inputs_of(item: Instruction) -> tuple[str, ...]:
    """The values that an instruction reads."""
    return item.reads if isinstance(item, Run) else (item.source,) if isinstance(item, Copy) else ()


def outputs_of(item: Instruction) -> tuple[str, ...]:
    """The values that an instruction makes."""
    return item.writes if isinstance(item, Run) else (item.target,) if isinstance(item, Copy) else ()


@dataclass(frozen=True)
class Program:
    """Instructions in issue order, with what they need to be understood on their own."""

    name: str
    lanes: tuple[Lane, ...]
    values: tuple[Value, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> dict[str, Value]:
        """Value by name."""
        return {value.name: value for value in self.values}

    def accesses(self, instruction: Instruction) -> tuple[Access, ...]:
        """Everything an instruction reads and writes.

        Values count as resources of their own, as ``%name``, so that passing one on is ordered by the same rule as
        touching a storage. A Free is none: what it must come after is a rule of its own.
        """
        match instruction:
            case Run(reads=reads, writes=writes, touches=touches):
                return (*[Access(f"%{name}") for name in reads], *[Access(f"%{name}", True) for name in writes], *touches)
            case Copy(source=source, target=target):
                storages = self.by_name[source].storages
                made = (Access(storage, True) for storage in self.by_name[target].storages)
                return (Access(f"%{source}"), *map(Access, storages), Access(f"%{target}", True), *made)
        return ()

    def __str__(self) -> str:
        lines = [f"program {_word(self.name)}"]
        lines += [f"lane {n} {_word(lane.name)} {_word(lane.torch_device)}" for n, lane in enumerate(self.lanes)]
        for value in self.values:
            lines.append(
                " ".join(["value", _word(value.name), _word(value.torch_device), str(value.bytes), *map(_word, value.storages)])
            )
        lines += [f"input {_word(name)}" for name in self.inputs]
        lines += [f"output {_word(name)}" for name in self.outputs]
        lines += map(str, self.instructions)
        return "\n".join(lines)


EMPTY = "''"


def _word(text: str) -> str:
    """One word without blanks, commas or parentheses; two quotes stand for the empty word."""
    return quote(text, safe="@.:/*_[]$<>-") if text else EMPTY
