"""Text to Program: reads back what ``str(program)`` gives."""

from __future__ import annotations

import re
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

    Returns:
        An equal program, which nobody has verified.

    Raises:
        PartitionerError: it does not begin as a program does, or a line is not an instruction or declaration; the message has
            its number and text.

    Example:
        >>> text = "program Toy\\nlane 0 cpu/0 cpu\\n0 run t0 () -> ()"
        >>> parse(text).instructions, str(parse(text)) == text
        ((Run(lane=0, task='t0', reads=(), writes=(), touches=()),), True)
    """
    if not isinstance(text, str) or text.split(maxsplit=1)[:1] != ["program"]:
        raise PartitionerError("not a printed program, which begins with `program <name>`; a model's file ends in .py")
    name, lanes, values = "", list[Lane](), list[Value]()
    inputs, outputs, instructions = list[str](), list[str](), list[Instruction]()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            match line.split():
                case []:
                    pass
                case ["program", word, *_]:
                    name = _plain(word)
                case ["lane", place, lane, device] if int(place) == len(lanes):
                    lanes.append(Lane(_plain(lane), _plain(lane).rpartition("/")[0], _plain(device)))
                case ["value", value, device, size, *storages]:
                    values.append(Value(_plain(value), _plain(device), int(size), tuple(map(_plain, storages))))
                case ["input", value]:
                    inputs.append(_plain(value))
                case ["output", value]:
                    outputs.append(_plain(value))
                case words:
                    instructions.append(_instruction(words))
        except (IndexError, KeyError, ValueError) as error:
            raise PartitionerError(f"line {number} of the program is not understood: {line.strip()!r}") from error
    return Program(name, tuple(lanes), tuple(values), tuple(inputs), tuple(outputs), tuple(instructions))


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
