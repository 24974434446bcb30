"""The verdict on a program in one variant: equal, refused, or a fault."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from partitioner import PartitionerError, partition
from partitioner.planner.policies import POLICIES
from scatter import scatter

from .portrait import differences, portrait
from .program import Program
from .running import Hang, Record, as_found, changes, generators, pictured, process, record

EQUAL, REFUSED = "equal", "refused"
DIFFERENT, RAW, HANG = "DIFFERENT", "RAW ERROR", "HANG"
FAULTS = (DIFFERENT, RAW, HANG)
LONGEST_MESSAGE = 8
"""Lines of a refusal, at most."""

Change = Callable[[nn.Module, Program], nn.Module]


@dataclass(frozen=True)
class Variant:
    """In which mode the model is, and whether `partition` is given an example."""

    training: bool
    example: bool

    def __str__(self) -> str:
        return f"{'train' if self.training else 'eval'}-{'example' if self.example else 'bare'}"


VARIANTS = (Variant(False, True), Variant(True, True), Variant(True, False))


@dataclass(frozen=True)
class Verdict:
    """How it went, and the lines that say so."""

    kind: str
    detail: str = ""


def judge(program: Program, variant: Variant, made: Change | None = None) -> Verdict:
    """Runs the program with the plain model, and with what is ``made`` of it: by default a partitioned one."""
    _wake_the_tracer()
    try:
        plain = eager(program, variant)
        with as_found(program.timeout):
            torch.compiler.reset()  # what came before is no part of a program
            model = built(program, variant)
            return _compared(program, variant, plain, model, made)
    except Hang as hang:
        return Verdict(HANG, str(hang))
    except Exception as error:  # state_dict() and its like, called to look at the module
        return Verdict(RAW, f"looking at the module: {_told(error)}")


def assert_equal(program: Program, variant: Variant, made: Change | None = None) -> None:
    """What is made of the model does what the plain one does; or does not, where that is known to be a limit."""
    verdict = judge(program, variant, made)
    if program.limit:
        assert verdict.kind != EQUAL, f"no limit any more: {program.limit}"
        pytest.xfail(program.limit)
    assert verdict.kind == EQUAL, f"{verdict.kind}: {verdict.detail}"


@functools.cache
def _wake_the_tracer() -> None:
    """Its first use replaces functions of torch for good, which is no program's doing."""
    torch.compile(lambda x: x, backend="eager")(torch.ones(1))


def built(program: Program, variant: Variant) -> nn.Module:
    """The model, from the same seed every time."""
    torch.manual_seed(7)
    return program.build().train(variant.training)


def eager(program: Program, variant: Variant) -> Record:
    """What the plain model does."""
    with as_found(program.timeout):
        model = built(program, variant)
        torch.manual_seed(5)
        return record(program, model, model, variant.training)


def partitioned(program: Program, variant: Variant, model: nn.Module) -> nn.Module:
    """The model on two lanes of the CPU, each op a task of its own and tasks thrown on lanes whether that pays or not."""
    POLICIES["scatter"] = scatter
    with torch.random.fork_rng(devices=[]):
        args, kwargs = program.example()
    example: dict[str, Any] = {"example_inputs": args, "example_kwargs": dict(kwargs)} if variant.example else {}
    return partition(model, devices=["cpu:0", "cpu:1"], policy="scatter", grain=0, **example)


def _compared(program: Program, variant: Variant, plain: Record, model: nn.Module, made: Change | None) -> Verdict:
    before = pictured(model, program.watch), process(), portrait(generators())
    try:
        module = made(model, program) if made is not None else partitioned(program, variant, model)
    except PartitionerError as refusal:
        changed = _left_alone(before, model, program)
        torch.manual_seed(5)
        return _refused(refusal, changed, record(program, model, model, variant.training), plain)
    except Exception as error:
        if _same(plain.error, error):
            return Verdict(EQUAL, "raised by partition() already")
        return Verdict(RAW, f"partition(): {_told(error)}")
    changed = _left_alone(before, model, program)
    if changed:
        return Verdict(DIFFERENT, "partition() changed " + "; ".join(changed[:6]))
    torch.manual_seed(5)
    return _held_against(plain, record(program, module, model, variant.training))


def _left_alone(before: Any, model: nn.Module, program: Program) -> list[str]:
    found = changes(before[0], before[1], pictured(model, program.watch), process())
    return [*found, *differences(before[2], portrait(generators()), "random state of ")]


def _refused(refusal: BaseException, changed: list[str], again: Record, plain: Record) -> Verdict:
    """A refusal has to be short, and the model as it was: it still does what it did."""
    message = f"{type(refusal).__name__}: {refusal}"
    lines = len(message.splitlines())
    if lines > LONGEST_MESSAGE:
        return Verdict(DIFFERENT, f"refused in {lines} lines: {message}")
    later = _held_against(plain, again) if not changed else Verdict(EQUAL)
    if later.kind != EQUAL:
        changed = [f"what the model does: {later.detail}"]
    if changed:
        return Verdict(DIFFERENT, f"refused, but changed {'; '.join(changed[:6])} | {message}")
    return Verdict(REFUSED, message)


def _held_against(plain: Record, other: Record) -> Verdict:
    found = [
        line
        for number, (left, right) in enumerate(zip(plain.steps, other.steps, strict=False))
        for line in differences(left, right, f"step {number}")
    ]
    if found:
        return Verdict(DIFFERENT, "; ".join(found[:6]))
    if isinstance(other.error, PartitionerError):
        if len(str(other.error).splitlines()) > LONGEST_MESSAGE:
            return Verdict(DIFFERENT, f"refused in many lines: {other.error}")
        if other.changed:
            return Verdict(DIFFERENT, f"refused, but changed {'; '.join(other.changed[:6])} | {other.error}")
        return Verdict(REFUSED, f"step {len(other.steps)}: {type(other.error).__name__}: {other.error}")
    if not _same(plain.error, other.error):
        kind = RAW if other.error is not None else DIFFERENT
        return Verdict(kind, f"step {len(other.steps)}: {_told(other.error)}; in eager {_told(plain.error)}")
    assert plain.after is not None and other.after is not None
    found = list(differences(plain.after, other.after, "afterwards"))
    return Verdict(DIFFERENT, "; ".join(found[:6])) if found else Verdict(EQUAL)


def _same(expected: BaseException | None, actual: BaseException | None) -> bool:
    return type(expected) is type(actual) and str(expected) == str(actual)


def _told(error: BaseException | None) -> str:
    return "nothing was raised" if error is None else f"{type(error).__name__}: {str(error)[:600]}"
