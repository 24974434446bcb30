"""Text to Program: reads back what ``str(program)`` gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from partitioner.errors import PartitionerError
from partitioner.ir.access import Access
from partitioner.ir.machine import Lane
from partitioner.ir.program import EMPTY, Copy, Free, Instruction, Program, Record, Run, Value, Wait


def _plain(token: str) -> str:
    return "" if token == EMPTY else unquote(token)


def parse(text: str) -> Program:
    """Read a program back from its text.

    Args:
        text: what ``str(program)`` gave.

    Raises:
        PartitionerError: it does not begin as a program does, or a line is not an instruction or declaration; the message has
            its number and text.
    """
    if not isinstance(text, str) or text.split(maxsplit=1)[:1] != ["program"]:
        raise PartitionerError("not a printed program, which begins with `program <name>`; a model's file ends in .py")
    name, found = "", _Parsed([], [], [], [], [])
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            if words[0] == "program":
                name = _plain(words[1])
            elif words[0] in _DECLARATIONS:
                _DECLARATIONS[words[0]](found, words[1:])
            else:
                found.instructions.append(_instruction(words))
        except (IndexError, KeyError, ValueError) as error:
            raise PartitionerError(f"line {number} of the program is not understood: {line.strip()!r}") from error
    return Program(name, *(tuple(part) for part in found))  # type: ignore[arg-type]


@dataclass
class _Parsed:
    lanes: list[Lane]
    values: list[Value]
    inputs: list[str]
    outputs: list[str]
    instructions: list[Instruction]

    def __iter__(self) -> Iterator[list[object]]:
        return iter([self.lanes, self.values, self.inputs, self.outputs, self.instructions])  # type: ignore[list-item]


def _parse_lane(found: _Parsed, words: list[str]) -> None:
    number, name, device = words
    if int(number) != len(found.lanes):
        raise ValueError("lanes are numbered from 0, in order")
    found.lanes.append(Lane(_plain(name), _plain(name).rpartition("/")[0], _plain(device)))


def _parse_value(found: _Parsed, words: list[str]) -> None:
    found.values.append(Value(_plain(words[0]), _plain(words[1]), int(words[2]), tuple(map(_plain, words[3:]))))


def _parse_name(names: list[str], words: list[str]) -> None:
    (name,) = words
    names.append(_plain(name))


_DECLARATIONS: dict[str, Callable[[_Parsed, list[str]], None]] = {
    "lane": _parse_lane,
    "value": _parse_value,
    "input": lambda found, words: _parse_name(found.inputs, words),
    "output": lambda found, words: _parse_name(found.outputs, words),
}

_RUN = re.compile(r"(\S+) \((.*?)\) -> \((.*?)\) ?(.*)")


def _instruction(words: list[str]) -> Instruction:
    lane = int(words[0])
    match words[1:]:
        case ["record", event]:
            return Record(lane, int(event.removeprefix("e")))
        case ["wait", event]:
            return Wait(lane, int(event.removeprefix("e")))
        case ["free", value]:
            return Free(lane, _plain(value))
        case ["copy", source, "->", target]:
            return Copy(lane, _plain(source), _plain(target))
        case ["run", *rest]:
            return _parse_run(lane, " ".join(rest))
    raise ValueError(words)


def _parse_run(lane: int, text: str) -> Run:
    parts = _RUN.fullmatch(text)
    if parts is None:
        raise ValueError(text)
    task, reads, writes, touches = parts.groups()
    accesses = tuple(Access(_plain(word[2:]), {"w": True, "r": False}[word[0]]) for word in touches.split())
    return Run(lane, _plain(task), _names(reads), _names(writes), accesses)


def _names(text: str) -> tuple[str, ...]:
    return tuple(_plain(word) for word in text.split(", ") if word)
