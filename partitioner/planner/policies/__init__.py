"""Policies: where, in which order and with how many threads every task runs. A new one is a file of its own and a line here.

A policy is a function of a `Problem`. Those that are built in are frozen dataclasses whose fields are their options:

>>> from partitioner.planner.policies import POLICIES
>>> POLICIES["by_level"]()
ByLevel()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import entry_points
from typing import Any

from pydantic import TypeAdapter, ValidationError

from partitioner.errors import PartitionerError, SpecError
from partitioner.ir.assignment import Assignment
from partitioner.ir.documents import faults_of
from partitioner.ir.problem import Problem
from partitioner.ir.units import DURATION, format_duration, quote
from partitioner.ir.words import hint, one_of
from partitioner.planner.bounded import bounded
from partitioner.planner.capacity import refuse_impossible
from partitioner.planner.policies.auto import Auto
from partitioner.planner.policies.by_level import ByLevel
from partitioner.planner.policies.chain import Chain
from partitioner.planner.policies.exact import Exact
from partitioner.planner.policies.fit import Fit
from partitioner.planner.policies.list import List
from partitioner.planner.policies.search import Search
from partitioner.planner.policies.single import Single
from partitioner.planner.sound import verified
from partitioner.planner.widen import widened

Policy = Callable[[Problem], Assignment]

POLICIES: dict[str, Callable[..., Policy]] = {
    "auto": Auto,
    "by_level": ByLevel,
    "chain": Chain,
    "exact": Exact,
    "fit": Fit,
    "list": List,
    "search": Search,
    "single": Single,
}

ENTRY_POINTS = "partitioner.policies"
"""The group of entry points under which a package may offer policies of its own."""

MIN_SPEEDUP = 1.10
"""Lanes must be predicted to be this much faster than one lane; less is within the error of the estimate."""


def policy_of(asked: str | Mapping[str, Any] | Policy) -> Policy:
    """The policy that was asked for.

    Args:
        asked: its name; its name and options, such as ``{"name": "exact", "time_limit": "10s"}``; or a function.

    Raises:
        SpecError: the name is not known, or an option is wrong.

    >>> policy_of({"name": "by_level"})
    OrSerial(policy=ByLevel())
    """
    if callable(asked):
        return asked
    if not isinstance(asked, str | Mapping):
        raise SpecError(f"{quote(asked)} is no policy; give a name, a mapping with a name and options, or a function")
    options: dict[str, Any] = {"name": asked} if isinstance(asked, str) else dict(asked)
    name = str(options.pop("name", ""))
    make = _named(name)
    if not (isinstance(make, type) and is_dataclass(make)):
        if options:
            raise SpecError(f"policy {quote(name)} has no options, and was given {', '.join(options)}")
        return make
    known = {field.name: field.type for field in fields(make)}
    for option, value in options.items():
        if option not in known:
            there = hint(option, known) or "; it has none"
            raise SpecError(f"policy {quote(name)} has no option {quote(option)}{there}")
        if known[option] == "float":
            try:
                options[option] = DURATION.parse(value)
            except SpecError as error:
                raise SpecError(f"policy {quote(name)}: {option}: {error}") from None
    try:
        made: Any = TypeAdapter(make).validate_python(options)
    except ValidationError as error:
        raise SpecError(f"policy {quote(name)}: {'; '.join(faults_of(error))}") from None
    return OrSerial(made)


def _named(name: str) -> Callable[..., Any]:
    """The policy of this name, which may be one that another package offers."""
    for each in entry_points(group=ENTRY_POINTS, name=name) if name not in POLICIES else ():
        found: Callable[..., Any] = each.load()
        return found
    return POLICIES[one_of("policy", name, POLICIES)]


def decided(problem: Problem, policy: Policy) -> Assignment:
    """What ``policy`` answers, held against the rules, with threads inside ops and a bound.

    For the smallest memory there is `Fit` alone.

    Raises:
        PlacementError: the policy found no answer.
        VerifyError: its answer breaks a rule; a policy may be anybody's.
        SpecError: one that is not of this package fails.
    """
    if problem.objective == "memory":
        policy = Fit()
    if isinstance(policy, OrSerial):  # which asks here for each of its two
        return policy(problem)
    refuse_impossible(problem)
    try:
        answer = verified(problem, policy(problem))
    except PartitionerError:
        raise
    except Exception as error:  # whoever wrote the policy is told; the tracer would take it for a graph that cannot be planned
        if str(policy.__module__).startswith("partitioner."):
            raise
        name = getattr(policy, "__name__", type(policy).__name__)
        raise SpecError(f"policy {name} fails on {problem.name}: {type(error).__name__}: {error}") from error
    return bounded(problem, widened(problem, answer))


@dataclass(frozen=True)
class OrSerial:
    """A policy that falls back to one lane where several do not pay, and says why. What is built in does."""

    policy: Policy

    def __call__(self, problem: Problem) -> Assignment:
        """The policy's answer, or `Single`'s."""
        answer = decided(problem, self.policy)
        if len(set(answer.lanes)) <= 1 or problem.objective != "latency":
            return answer
        serial = decided(problem, Single())
        least = MIN_SPEEDUP if len(set(serial.lanes)) == 1 else 1.0
        if answer.cost * least < serial.cost or (answer.cost == serial.cost and least == 1.0):
            return answer
        gain = f"{serial.cost / answer.cost:.2f}x" if answer.cost else "1.00x"
        if least == 1.0:
            note = f"the first device that may have it, because more lanes were predicted to give {gain}"
            return replace(serial, policy=answer.policy, note=note)
        note = f"serial, because lanes were predicted to give {gain} and {MIN_SPEEDUP:.2f}x is the least that counts"
        reasons = [_why(problem, task, note) for task in range(len(problem.tasks))]
        return replace(serial, policy=answer.policy, note=note, reasons=reasons)


def _why(problem: Problem, task: int, note: str) -> str:
    """Of a task that is shorter than a hand-off, the two times; of any other, why all is serial."""
    seconds, handoff = problem.seconds[0][task], problem.processors[0].handoff
    if 0 < seconds < handoff:
        return f"serial, because it takes {format_duration(seconds)} and a hand-off costs {format_duration(handoff)}"
    return note
