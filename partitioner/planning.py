"""A task graph without a model, from documents to an answer: what `compile.py` is to models.

    machine    = read_machine(MACHINE)                 devices, links, links to the host
    problem    = read_problem(GRAPH, machine)          tasks, values, ways between devices, as numbers
    assignment = policy(problem)                       where, and when
    answer     = Answer(problem, assignment)           the same by name

No torch is needed, and nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from partitioner.ir.answer import Answer
from partitioner.ir.problem import Objective
from partitioner.ir.units import DURATION
from partitioner.ir.words import one_of
from partitioner.planner.policies import POLICIES, OrSerial, Policy, decided, policy_of
from partitioner.spec.entries import Faults, collector_off
from partitioner.spec.taskgraph import TaskGraphSource, read_problem
from partitioner.spec.taskmachine import read_machine

OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput")
TIME_LIMIT = 10.0


def plan(
    graph: TaskGraphSource,
    machine: Mapping[str, Any] | str | Path,
    *,
    objective: str = "latency",
    contiguous: bool = False,
    policy: str | Mapping[str, Any] | Policy = "auto",
    time_limit: float | str = TIME_LIMIT,
) -> Answer:
    """Plan where and when the tasks of a graph run on the devices of a machine.

    Args:
        graph: the path of a ``.json`` file, a mapping of the same form, or a `networkx.DiGraph` whose nodes have the keys of
            a task as attributes; `partitioner.spec.taskgraph` says what the form is.
        machine: the path of a ``.json`` or ``.yaml`` file, or a mapping; `partitioner.spec.taskmachine` says what the form is.
        objective: ``"latency"``: the makespan, with transfers in time and links that carry one value at a time.
            ``"throughput"``: the largest load of a device, for work that keeps coming: compute and transfers together or,
            where they overlap, the largest of compute, sending and receiving.
        contiguous: no path of tasks leaves a device and comes back; tasks of a backward pass are left out of that rule.
        policy: a name; a name and options, such as ``{"name": "search", "seed": 1}``; or a function of a `Problem`.
        time_limit: seconds, or text such as ``"500ms"``, that a policy which goes on improving may take.

    Returns:
        Placement, starts, makespan or load, and a proven lower bound.

    Raises:
        SpecError: a document or an argument is wrong. Lists every fault with its path.
        PlacementError: no placement meets groups, kinds, memory caps and contiguity.

    Example:
        >>> from partitioner import plan
        >>> tasks = [{"name": "a", "seconds": 1}, {"name": "b", "seconds": 2}, {"name": "c", "seconds": 2}]
        >>> graph = {"tasks": tasks, "edges": [["a", "b"], ["a", "c"]]}
        >>> gpus = {"devices": [{"name": "gpu0", "kind": "gpu"}, {"name": "gpu1", "kind": "gpu"}]}
        >>> plan(graph, gpus, policy="by_level").makespan
        3.0
    """
    faults = Faults("the arguments of plan")
    limit = faults.read("time_limit", time_limit, DURATION.parse, TIME_LIMIT)
    faults.flag("contiguous", contiguous)
    faults.check()
    aim = one_of("objective", objective, OBJECTIVES)
    decide = _policy(policy, limit)
    with collector_off():
        problem = read_problem(graph, read_machine(machine), aim, contiguous)
        before = perf_counter()
        assignment = decided(problem, decide)
    return Answer(problem, assignment, perf_counter() - before)


def _policy(asked: str | Mapping[str, Any] | Policy, time_limit: float) -> Policy:
    """The policy that was asked for, under the time limit. It answers for itself: there is no model to run on one lane."""
    if isinstance(asked, str | Mapping):
        asked = {"name": asked} if isinstance(asked, str) else dict(asked)
        made = POLICIES.get(str(asked.get("name")))
        if is_dataclass(made) and "time_limit" in {field.name for field in fields(made)}:
            asked.setdefault("time_limit", time_limit)
    found = policy_of(asked)
    return found.policy if isinstance(found, OrSerial) else found
