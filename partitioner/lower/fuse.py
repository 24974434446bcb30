"""Fewer, longer tasks: what a lane runs between two hand-offs becomes one, so that it can be compiled as one.

    lane 0   run t0 . run t2 . record e1 . run t4            run t0 . record e1 . run t2
    lane 1   wait e1 . run t1 . run t3                       wait e1 . run t1

Ops that cannot be compiled, and those between which something that is no tensor would have to pass, stay in tasks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import groupby

from partitioner.ir.assignment import Assignment
from partitioner.ir.plan import Plan
from partitioner.ir.segment import segments, wide_tasks
from partitioner.ir.task import TaskGraph, group
from partitioner.lower import lowered
from partitioner.lower.runs import schedule
from partitioner.lower.verify import verify_plan

Compilable = Callable[[TaskGraph], Collection[str]]
"""Asked of tasks: the ops that cannot be in a compiled one, as these tasks are."""


def fused(plan: Plan, refused: Compilable) -> Plan:
    """A plan of the same ops on the same lanes, in the same order, as few tasks.

    Args:
        plan: verified.
        refused: given tasks, the ops that must leave those that they are in.

    Raises:
        VerifyError: what came of it breaks a rule.
    """
    alone: set[str] = set()
    while True:
        made = _made(plan, alone)
        more = set(refused(made.tasks)) - alone
        if not more:
            verify_plan(made)
            return made
        alone |= more


def _made(plan: Plan, alone: Collection[str]) -> Plan:
    """The plan with a task for each run of ops of a segment that are all compiled, or all not."""
    wide, known = wide_tasks(plan.placement), plan.tasks.by_name
    lane_of: dict[str, int] = {}
    groups: list[list[str]] = []
    for segment in segments(plan.program, wide):
        ops = (op for task in segment.tasks for op in known[task].ops)
        for _, members in groupby(ops, key=alone.__contains__):
            groups.append(list(members))
            lane_of.update(dict.fromkeys(groups[-1], segment.lane))
    tasks = group(plan.graph, groups)
    placement = _placed(plan, tasks, [members[0] for members in groups], lane_of)
    program = lowered(schedule(tasks, placement, plan.machine))
    return replace(plan, tasks=tasks, placement=placement, program=program)


def _placed(plan: Plan, tasks: TaskGraph, heads: list[str], lane_of: dict[str, int]) -> Assignment:
    """The assignment of the new tasks: lanes, order and threads are those of the old ones."""
    old, names = plan.placement, tuple(task.name for task in tasks.tasks)
    number = {name: position for position, name in enumerate(names)}
    before = {name: position for position, name in enumerate(old.tasks)}
    first = [before[plan.tasks.task_of[task.ops[0]]] for task in tasks.tasks]
    last = [before[plan.tasks.task_of[task.ops[-1]]] for task in tasks.tasks]
    return replace(
        old,
        tasks=names,
        lanes=[lane_of[task.ops[0]] for task in tasks.tasks],
        order=[number[tasks.task_of[head]] for head in heads],
        threads=[old.threads[position] for position in first] if old.threads else (),
        start=[old.start[position] for position in first] if old.start else (),
        end=[old.end[position] for position in last] if old.end else (),
        reasons=[old.reasons[position] for position in first] if old.reasons else (),
    )
