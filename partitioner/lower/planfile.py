"""Reads a printed program from a file, and refuses what no rule of the verifier can speak about."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from partitioner.errors import PartitionerError
from partitioner.ir.parse import parse
from partitioner.ir.program import Program
from partitioner.lower.rules import Case, undeclared

_LARGEST = 2**28
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:(0|[1-9][0-9]{0,4}))?", re.ASCII)
"""The form of a torch device. Whether torch knows the type is no question of the plan's."""


class ProgramError(PartitionerError):
    """A file is no printed program. Names the line, or the instruction and what it speaks of that does not exist."""


def is_program(text: str) -> bool:
    """Whether a word of the command line is a file that can only be a program: one whose name does not end in ``.py``."""
    try:
        return not text.endswith(".py") and stat.S_ISREG(Path(text).stat().st_mode)
    except (OSError, ValueError):
        return False


def read_program(text: str) -> Program:
    """The program in the file called ``text``.

    Raises:
        ProgramError: it cannot be read, is no program, or names lanes, values or devices that it does not declare.
    """
    try:
        with Path(text).open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ValueError("it is larger than any program")
        content = data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise ProgramError(f"{text}: cannot be read as text: {error}") from error
    if not content.lstrip().startswith("program "):
        raise ProgramError(f"{text}: not a printed program, which begins with `program <name>`; a model's file ends in .py")
    try:
        program = parse(content)
    except PartitionerError as error:
        raise ProgramError(f"{text}: {error}") from error
    for fault in _dangling(program):
        raise ProgramError(f"{text}: {fault}")
    return program


def _dangling(program: Program) -> Iterator[str]:
    """What the program speaks of and does not declare."""
    if not program.lanes:
        yield "it declares no lane; write `lane 0 <device>/0 <torch device>`"
    for lane in program.lanes:
        if not _DEVICE.fullmatch(lane.torch_device):
            yield f"lane {lane.name} is on {lane.torch_device!r}, which is no torch device"
    yield from (fault.message for fault in undeclared(Case(program)))
