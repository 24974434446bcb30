"""A policy that spreads tasks over lanes as widely as the constraints allow, whether that pays or not. For tests."""

from __future__ import annotations

import zlib

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import scheduled
from partitioner.planner.feasible import Feasible


def scatter(problem: Problem) -> Assignment:
    """Each task goes to a lane that follows from its ops' names, so that a plan is the same each time it is made."""
    feasible, lanes = Feasible(problem), list[int]()
    for task, label in enumerate(problem.labels):
        processors = feasible.processors(task)
        allowed = [lane for lane, processor in enumerate(problem.lanes) if processor in processors]
        lanes.append(allowed[zlib.crc32(label.replace(" ", "").encode()) % len(allowed)])
        feasible.assign(task, problem.lanes[lanes[-1]])
    return scheduled(problem, "scatter", lanes, range(len(lanes)), note="scattered")
