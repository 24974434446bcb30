"""Files: printed programs, of which is refused what no rule of the verifier can speak about, and documents of plans.

Both are text that is parsed and checked, and never run. A document is JSON that `ir/saved.py` describes; whatever is wrong in
one is told by its path in the document.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from partitioner.errors import PartitionerError, SpecError
from partitioner.ir.documents import faults_of, parse_json, read_bounded, refused, why, write_whole
from partitioner.ir.parse import parse
from partitioner.ir.plan import Plan
from partitioner.ir.program import Program
from partitioner.ir.saved import SavedPlan
from partitioner.ir.saving import saved
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
        content = _content(Path(text))
    except (OSError, ValueError) as error:
        raise ProgramError(f"{text}: cannot be read as text: {why(error)}") from error
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


def _content(path: Path) -> str:
    """The text of a file of ordinary kind and size."""
    data = read_bounded(path, _LARGEST)
    if len(data) > _LARGEST:
        raise ValueError("it is larger than any plan")
    return data.decode("utf-8")


# Documents of plans ---------------------------------------------------------------------------------------------------


def write_plan(plans: Plan | Iterable[Plan], path: str | os.PathLike[str], model: str = "") -> SavedPlan:
    """Write plans of one model to a JSON file, which takes the place of another one only once it is whole.

    Args:
        plans: a plan, or several that were made for one machine.
        path: the file.
        model: the name of the model's class; the first graph's name if left out.

    Raises:
        SpecError: there are no plans, they are for different machines, one was made without knowing any shape, or the file
            cannot be written.
    """
    found = [plans] if isinstance(plans, Plan) else list(plans)
    if not found:
        raise SpecError("there is no plan to save yet: call the model once, or give example_inputs")
    for plan in found:
        if not plan.graph.observed:
            raise SpecError(f"the plan of {plan.graph.name} is provisional, for no shapes are known; give an example input")
        if plan.machine != found[0].machine:
            raise SpecError("the plans are for different machines; save them in a file each")
    document = saved(found, model)
    write_whole(document.text(), path)
    return document


def save_plan(parallel: Any, path: str | os.PathLike[str]) -> None:
    """Write the plans of all programs that a partitioned module has made so far to one JSON file.

    ``partition(model, plan=path)`` applies them, on another machine of the same shape too.

    Args:
        parallel: what `partition` gave. Each kind of call (shapes, modes) has a program of its own; make those calls before.
        path: the file.

    Raises:
        SpecError: it is no partitioned module, has no program yet, or the file cannot be written.

    Example:
        >>> import tempfile, torch
        >>> from partitioner import partition
        >>> model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_plan(partition(model, ["cpu"], example_inputs=x), f"{folder}/plan.json")
        ...     again = partition(model, example_inputs=x, plan=f"{folder}/plan.json")
        >>> torch.equal(again(x), model(x))
        True
    """
    programs = getattr(parallel, "_partitioner_programs", None)
    if programs is None:
        raise SpecError(f"save_plan takes what partition() gave, and this is a {type(parallel).__name__}")
    plans = [piece.plan for piece in programs.pieces] or [programs.provisional][: programs.provisional is not None]
    write_plan(plans, path, type(programs.original).__name__)


def read_plan(path: str | os.PathLike[str]) -> SavedPlan:
    """The document in a file that `write_plan` wrote, or somebody edited.

    Args:
        path: a JSON file of at most 256 MiB.

    Raises:
        SpecError: the only error. It tells the first faults, each with its path in the document.
    """
    where = json.dumps(str(path))
    try:
        content = _content(Path(path))
    except (OSError, TypeError, ValueError) as error:
        raise SpecError(
            f"{where}: cannot be read as text: {why(error)}; give the path of a file that save_plan wrote"
        ) from error
    try:
        parse_json(content)
        return SavedPlan.model_validate_json(content)
    except ValidationError as error:
        faults = faults_of(error)
        if _UNVERSIONED in faults:  # a document of another kind, and of that no other fault is worth a line
            faults = [f"{_UNVERSIONED}; save_plan and inspect --save-plan write plans"]
    except RecursionError:
        faults = ["it is nested too deeply; a plan has five levels"]
    except ValueError as error:
        faults = [f"no JSON: {error}"]
    raise refused(where, "the document of a plan", faults)


_UNVERSIONED = "schema_version: is missing"
