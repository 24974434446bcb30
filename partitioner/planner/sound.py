"""Whether an answer keeps every rule of its problem, from the rules alone: a policy may come from anywhere.

    policy mine: 2 faults
      task b starts at 0.5 s, before a ends at 1 s
      gpu0 holds 20 GiB, and its memory is 16 GiB

A task waits for what it reads to pass each channel on its way. In which order values pass a channel is not looked at:
`planner/timing.py` says that, and it is the only clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from math import inf, isfinite, isnan
from operator import index

from partitioner.errors import VerifyError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import ISSUE, Problem
from partitioner.ir.units import format_duration, format_size
from partitioner.planner.assigned import cost_of, held
from partitioner.planner.feasible import returns

MOST_FAULTS = 20
SLACK = 1e-9
"""Part of a time by which rounding may make two sums of the same seconds differ."""

Rule = Callable[[Problem, Assignment, list[int]], Iterator[str]]


def verified(problem: Problem, answer: Assignment) -> Assignment:
    """``answer``, once it has been held against every rule, with the names of its tasks.

    Args:
        problem: what was asked.
        answer: what a policy answered.

    Raises:
        VerifyError: it breaks a rule. Lists the first faults.
    """
    if not isinstance(answer, Assignment):
        raise VerifyError(f"the policy answered with a {type(answer).__name__}; a policy gives an Assignment")
    faults = list(_of_form(problem, answer))
    if not faults:
        homes = [problem.lanes[lane] for lane in answer.lanes]
        faults = list(islice((fault for rule in RULES for fault in rule(problem, answer, homes)), MOST_FAULTS))
        if not faults and not all(map(isfinite, (*answer.start, *answer.end))):
            faults = ["start and end: finite seconds are needed"]
    if faults:
        title = f"policy {answer.policy}: {len(faults)} fault{'s' if len(faults) > 1 else ''}"
        raise VerifyError("\n  ".join([title, *faults]))
    return answer if answer.tasks else replace(answer, tasks=tuple(problem.tasks))


def _of_form(problem: Problem, answer: Assignment) -> Iterator[str]:
    """What must hold before any other rule can be looked at."""
    count = len(problem.tasks)
    if len(answer.lanes) != count or any(not 0 <= lane < len(problem.lanes) for lane in answer.lanes):
        yield f"lanes: {count} numbers from 0 to {len(problem.lanes) - 1} are needed"
    if sorted(answer.order) != list(range(count)):
        yield f"order: each of the {count} tasks is needed once"
    if len(answer.start) != count or len(answer.end) != count:
        yield f"start and end: {count} times of each are needed"
    elif any(map(isnan, (*answer.start, *answer.end))):
        yield "start and end: numbers are needed"
    if answer.tasks and tuple(answer.tasks) != tuple(problem.tasks):
        yield "tasks: the names of the problem's are needed, in its order, or none"
    if any(len(each) not in (0, count) for each in (answer.threads, answer.reasons)):
        yield f"threads and reasons: {count} of each are needed, or none"
    if any(index(threads) < 0 for threads in answer.threads):
        yield "threads: no number below 0 is one"
    if not all(isinstance(each, str) for each in (answer.policy, answer.note, *answer.reasons)):
        yield "policy, note and reasons: texts are needed"
    if not 0 <= answer.bound <= answer.cost * (1 + SLACK):  # not if one is NaN, either
        yield f"the bound is {answer.bound:g} and the cost {answer.cost:g}"


def _where(problem: Problem, answer: Assignment, homes: list[int]) -> Iterator[str]:
    """Kinds, groups and pins."""
    for task, home in enumerate(homes):
        if problem.seconds[home][task] == inf:
            yield f"task {problem.tasks[task]} is on {problem.processors[home].name}, which cannot run it"
    for group, tasks in problem.members.items():
        first = homes[tasks[0]]
        if len(tasks) > 1 and any(homes[task] != first for task in tasks):
            yield f"{problem.tasks[tasks[0]]} and others of its group are on several devices"
        if problem.pin.get(group, first) != first:
            yield f"task {problem.tasks[tasks[0]]} is not on {problem.processors[problem.pin[group]].name}, its pin"


def _memory(problem: Problem, answer: Assignment, homes: list[int]) -> Iterator[str]:
    for need, device in zip(held(problem, homes), problem.processors, strict=True):
        if need > device.memory * (1 + SLACK):
            yield f"{device.name} holds {format_size(need)}, and its memory is {format_size(device.memory)}"


def _contiguity(problem: Problem, answer: Assignment, homes: list[int]) -> Iterator[str]:
    for task in returns(problem, homes) if problem.contiguous else ():
        yield f"a path leaves {problem.processors[homes[task]].name} and comes back to it at {problem.tasks[task]}"


def _times(problem: Problem, answer: Assignment, homes: list[int]) -> Iterator[str]:
    """Each task has its time, after all that it waits for; tasks of one lane take turns, as do those of the order."""
    slack = SLACK * max(answer.end, default=0.0)
    for task, home in enumerate(homes if not answer.threads else ()):
        if answer.end[task] - answer.start[task] < problem.seconds[home][task] - slack:
            yield f"task {problem.tasks[task]} is given less than its {format_duration(problem.seconds[home][task])}"
    place = [0] * len(problem.tasks)
    for number, task in enumerate(answer.order):
        place[task] = number
    for source, target, value in problem.edges:
        if place[source] > place[target]:
            yield f"{problem.tasks[target]} is issued before {problem.tasks[source]}, which it waits for"
        way = problem.routes.get((homes[source], homes[target]), ()) if value >= 0 else ()
        seconds = sum(problem.channels[number].seconds(problem.values[value][1]) for number in way) if way else 0.0
        if value != ISSUE and answer.start[target] < answer.end[source] + seconds - slack:
            yield _early(problem, answer, target, source, seconds)
    last: dict[int, int] = {}
    for task in sorted(range(len(problem.tasks)), key=lambda task: (answer.start[task], answer.end[task])):
        before = last.setdefault(answer.lanes[task], task)
        if before != task and answer.start[task] < answer.end[before] - slack:
            yield _early(problem, answer, task, before)
        last[answer.lanes[task]] = task


def _early(problem: Problem, answer: Assignment, task: int, before: int, seconds: float = 0.0) -> str:
    start, end = format_duration(answer.start[task]), format_duration(answer.end[before])
    moved = f" and its value has travelled for {format_duration(seconds)}" if seconds else ""
    return f"task {problem.tasks[task]} starts at {start}, before {problem.tasks[before]} ends at {end}{moved}"


def _cost(problem: Problem, answer: Assignment, homes: list[int]) -> Iterator[str]:
    found = cost_of(problem, homes, max(answer.end, default=0.0))
    if found > answer.cost * (1 + SLACK):
        yield f"the cost is given as {answer.cost:g}, and is {found:g}"


RULES: tuple[Rule, ...] = (_where, _memory, _contiguity, _times, _cost)
