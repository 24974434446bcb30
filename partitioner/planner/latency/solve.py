"""The best schedule that CP-SAT finds in some seconds, on the clock, and what it proves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from partitioner.ir.problem import Problem
from partitioner.planner.latency.model import solver_module
from partitioner.planner.latency.ranks import by_urgency
from partitioner.planner.latency.schedule_model import Schedule
from partitioner.planner.latency.tries import Found
from partitioner.planner.timing import Ahead, timed

MOST_TASKS = 2000
"""Tasks beyond which no model is built."""

MOST_PARTS = 300_000
"""Booleans and intervals beyond which no model is built; counted before."""

BUILDING = 2.5e-5
"""Seconds to build a model, for each of them."""


def too_large(problem: Problem) -> bool:
    """Whether CP-SAT could not do anything useful with the problem in seconds."""
    return len(problem.tasks) > MOST_TASKS or _parts(problem) > MOST_PARTS


def start_up(problem: Problem) -> float:
    """Seconds that pass before the solver has its turn, about."""
    return BUILDING * _parts(problem)


def _parts(problem: Problem) -> int:
    places = len(problem.processors)
    lanes = len(problem.lanes) if any(each.handoff for each in problem.processors) else places
    moved = len(problem.values) * sum(1 for route in problem.routes.values() if route)
    return len(problem.tasks) * lanes + len(problem.edges) * lanes + moved * 2


def solved(problem: Problem, known: Found, least: float, until: float, workers: int, seed: int) -> tuple[Found, float]:
    """A schedule that is no worse than the known one, and seconds that no schedule beats.

    Args:
        problem: not `too_large`.
        known: a schedule to start from.
        least: seconds that no schedule beats, as far as is known.
        until: moment, on `time.perf_counter`, at which the solver ends.
        workers: threads of the solver; 0: one for each core.
        seed: of the solver's choices.
    """
    module = solver_module()
    model = Schedule(problem, known.seconds, least)
    _hint(model, known)
    solver = module.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.05, until - perf_counter())
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    seen = _seen(module, model, known)
    status = solver.solve(model.cp, seen)
    if status == module.INFEASIBLE:  # not so, for an answer is known: a fault, ours or the solver's, and no proof of anything
        return seen.best, least
    proven = solver.best_objective_bound * model.unit
    if not model.exact:
        proven *= 1 - 1e-12
    assert proven <= seen.best.seconds * (1 + 1e-6), f"a proof of {proven} against a schedule of {seen.best.seconds}"
    return seen.best, max(least, min(proven, seen.best.seconds))


def _hint(model: Schedule, known: Found) -> None:
    """Tell the solver the known schedule."""
    problem, clock = model.problem, known.clock
    for (group, site), var in model.at.items():
        home = problem.lanes[known.lanes[problem.members[group][0]]]
        model.cp.add_hint(var, home in model.sites[site].processors)
    for task in range(len(problem.tasks)):
        model.cp.add_hint(model.start[task], model.ticks(clock.start[task]))
    model.cp.add_hint(model.makespan, min(model.most, model.ticks(known.seconds)))


def _seen(module: Any, model: Schedule, known: Found) -> Any:
    """A callback that puts every solution on the clock, and keeps the best."""

    class Seen(module.CpSolverSolutionCallback):  # type: ignore[misc]
        best = known

        def on_solution_callback(self) -> None:
            for found in read(model, self.value):
                if found.seconds < self.best.seconds:
                    self.best = found

    return Seen()


def read(model: Schedule, value: Callable[[Any], int]) -> list[Found]:
    """A solution's lanes on the clock: everything in its order; and with all that travels when its reader has its turn."""
    problem = model.problem
    spans = [(value(start), value(end)) for start, end in zip(model.start, model.end, strict=True)]
    turns = sorted(range(len(spans)), key=spans.__getitem__)  # what takes no time before what starts with it
    lanes = _lanes(model, value, spans, turns)
    order = by_urgency(problem, (-np.argsort(turns)).tolist())
    ways = [_ahead(model, value, lanes, order), {}] if model.begins else [{}]
    return [Found.of(timed(problem, lanes, order, ahead=each), order, "exact", each) for each in ways]


def _ahead(model: Schedule, value: Callable[[Any], int], lanes: Sequence[int], order: Sequence[int]) -> Ahead:
    """What a solution has sent off by the time at which each task starts, in its order."""
    problem = model.problem
    sent = sorted(
        {
            (value(model.begins[moved, channel]), place, moved, channel)
            for moved, (maker, _) in enumerate(problem.values)
            for reader in problem.readers[moved]
            for place, channel in enumerate(problem.routes.get((problem.lanes[lanes[maker]], problem.lanes[lanes[reader]]), ()))
        },
        reverse=True,
    )
    made: set[int] = set()
    ahead: dict[int, list[tuple[int, int]]] = {}
    for task in order:
        while sent and sent[-1][0] <= value(model.start[task]) and problem.values[sent[-1][2]][0] in made:
            ahead.setdefault(task, []).append(sent.pop()[2:])
        made.add(task)
    return ahead


def _lanes(model: Schedule, value: Callable[[Any], int], spans: Sequence[tuple[int, int]], turns: Sequence[int]) -> list[int]:
    """A lane of its pool for each task: of those that are free, the one that has been free for the shortest time."""
    pool_of = {task: number for (task, number), literal in model.on.items() if value(literal)}
    free = [[(0, lane) for lane in pool.lanes] for pool in model.pools]
    lanes = [-1] * len(turns)
    for task in turns:
        ends = free[pool_of[task]]
        last = max([each for each in ends if each[0] <= spans[task][0]] or [min(ends)])
        ends[ends.index(last)] = (spans[task][1], last[1])
        lanes[task] = last[1]
    return lanes
