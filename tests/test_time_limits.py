"""What a planner does with little time: nothing is entered that needs more before it looks at the time."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from random import Random
from time import monotonic, perf_counter, process_time
from typing import NoReturn

import pytest

from partitioner.errors import PlacementError
from partitioner.ir.problem import ORDER, Channel, Kind, Objective, Problem, Processor
from partitioner.planner.latency import crossings, starts
from partitioner.planner.latency.homes import Homes
from partitioner.planner.latency.tries import Found, best_of
from partitioner.planner.policies.auto import Auto
from partitioner.planner.policies.exact import Exact, worth_while
from partitioner.planner.policies.list import List
from partitioner.planner.throughput import fitting, model, openings
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.prices import park_of
from partitioner.planning import plan
from partitioner.spec.taskgraph import read_problem
from partitioner.spec.taskmachine import read_machine

MACHINE = {
    "devices": [{"name": f"d{number}", "kind": "gpu"} for number in range(3)],
    "links": [{"between": ["d0", "d1"], "bandwidth": 100}, {"between": ["d1", "d2"], "bandwidth": 100}],
}


def graph(tasks: int) -> dict[str, object]:
    """Tasks that each read one or two of those before them."""
    random = Random(tasks)
    rows = [{"name": f"t{number}", "seconds": random.uniform(0.5, 2.0), "output": 10} for number in range(tasks)]
    pairs = {(random.randrange(max(0, task - 9), task), task) for task in range(1, tasks) for _ in range(2)}
    return {"tasks": rows, "edges": [[f"t{source}", f"t{target}"] for source, target in sorted(pairs)]}


def posed(tasks: int, objective: Objective = "latency") -> Problem:
    return read_problem(graph(tasks), read_machine(MACHINE), objective)


def test_a_solver_that_is_not_there_yet_is_not_loaded_for_a_moment() -> None:
    """To import it takes half a second, which was not counted: 40 tasks took 0.9 s of 0.2 s."""
    code = (
        f"import sys; from partitioner.planning import plan; graph, machine = {graph(40)!r}, {MACHINE!r}\n"
        "for objective in ('latency', 'throughput'): plan(graph, machine, objective=objective, time_limit=0.2)\n"
        "print([name for name in sys.modules if name.startswith('ortools')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_model_is_built_that_leaves_the_solver_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,500 tasks' takes half a second, and was built twice."""
    pytest.importorskip("ortools")
    problem = posed(1500, "throughput")
    monkeypatch.setattr(model, "Model", lambda *_, **__: pytest.fail("there is no time for it"))
    began = perf_counter()
    answer = Auto(time_limit=0.3)(problem)
    assert perf_counter() - began < 3.0  # 0.3 s where nothing else runs
    assert answer.bound <= answer.cost
    small = posed(300)
    monkeypatch.setattr("partitioner.planner.policies.exact.solved", lambda *_: pytest.fail("nor here"))
    assert Exact(time_limit=0.1)(small).cost <= List()(small).cost * 1.2


def passed_on(tasks: int) -> Problem:
    """A chain on two equal processors with a link."""
    edges = [(task, task + 1, task) for task in range(tasks - 1)]
    link = Channel("link", 1.0, 0.0, (0, 1))
    kind, names = Kind("kind", {1: [1.0] * tasks}), tuple(map(str, range(tasks)))
    machine, values = (Processor("x", 0), Processor("y", 0)), [(task, 1.0) for task in range(tasks - 1)]
    return Problem("chain", names, (kind,), machine, edges, values, (link,), {(0, 1): (0,), (1, 0): (0,)})


def test_one_schedule_is_made_in_no_time() -> None:
    problem = posed(60)
    tried = [best_of(problem, Homes(problem), 16, until).seconds for until in (0.0, perf_counter() + 60)]
    assert tried[0] == best_of(problem, Homes(problem), 1).seconds >= tried[1]


def test_list_scheduling_tries_more_than_once_where_there_is_time() -> None:
    """By what is asked for and not by the clock: the same answer on every machine."""
    for limit, tries in ((0.05, 1), (0.2, 1), (2.0, 16)):
        policy = next(iter(Auto(time_limit=limit).policies(posed(50), lambda: 0.0)))
        assert isinstance(policy, List) and policy.tries == tries, limit
    assert not worth_while(posed(50), 0.05) and worth_while(posed(50), 5.0)


def test_list_scheduling_has_the_solvers_time_where_that_would_come_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had a quarter of 2 s for the sake of a solver that then had a fifth of a second, or none."""
    monkeypatch.setattr("partitioner.planner.policies.exact.loading", lambda: 0.7)
    for tasks, limit, part in ((8, 2.0, 0.25), (38, 2.0, 0.5), (38, 8.0, 0.25), (50, 8.0, 0.5)):
        policy = next(iter(Auto(time_limit=limit).policies(passed_on(tasks), lambda limit=limit: limit)))
        assert isinstance(policy, List) and policy.time_limit == part * limit
    assert not worth_while(passed_on(80), 2.0) and worth_while(passed_on(80), 5.0)


def test_list_scheduling_keeps_the_time_of_auto() -> None:
    """Its tries were only counted: where values travel and memory is scarce, 28 tasks took 4 s of a limit of 1 s."""
    random = Random(3)
    names = [f"t{number}" for number in range(28)]
    tasks = [{"name": name, "seconds": 6, "output": random.randint(0, 40), "memory": random.randint(0, 20)} for name in names]
    edges = [[a, b] for a in names[:14] for b in names[14:] if random.random() < 0.4]
    room = 1.05 * sum(int(task["memory"]) for task in tasks) / 4
    where = [{"name": f"d{each}", "kind": "gpu", "memory": room, "host_link": {"bandwidth": 0.5}} for each in range(4)]
    problem = read_problem({"tasks": tasks, "edges": edges}, read_machine({"devices": where}))
    began = process_time()
    answer = List(time_limit=0.1)(problem)
    assert process_time() - began < 1.0  # 0.2 s; 3 s where nothing was cut short
    assert answer.bound <= answer.cost
    limits = [next(iter(Auto(time_limit=limit).policies(problem, lambda: 4.0))) for limit in (1.0, 4.0)]
    assert all(isinstance(policy, List) and policy.time_limit <= 1.0 for policy in limits)


def test_nobody_looks_for_garbage_while_a_graph_is_planned() -> None:
    """Of 10^5 tasks the collector took a third of the time of `list`, and found nothing: it was off for reading alone."""
    was_on, seen = gc.isenabled(), list[bool]()
    gc.enable()
    try:
        plan(graph(3), MACHINE, policy=lambda problem: seen.append(gc.isenabled()) or List()(problem))
        assert seen == [False] and gc.isenabled()
    finally:
        if not was_on:
            gc.disable()


def test_whether_anything_fits_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 tasks that fill eight devices nobody could say it soon, and each policy asked anew: 40 s of a limit of 1 s."""
    pytest.importorskip("ortools")
    random, asked = Random(1), list[float]()
    tasks = [{"name": f"t{number}", "seconds": 1, "memory": 2 * random.randint(10**6, 3 * 10**6)} for number in range(24)]
    room = sum(int(task["memory"]) for task in tasks) // 8 + 1
    full = {"devices": [{"name": f"d{number}", "kind": "gpu", "memory": room} for number in range(8)]}
    real = fitting.fitting
    monkeypatch.setattr(fitting, "PATIENCE", 0.1)
    monkeypatch.setattr(fitting, "fitting", lambda park, until: asked.append(until) or real(park, until))
    for objective in ("latency", "throughput"):
        with pytest.raises(PlacementError):
            plan({"tasks": tasks, "edges": []}, full, objective=objective, time_limit=0.1)
    assert len(asked) == 2


@pytest.mark.parametrize("tasks", [5, 8])
def test_exchanges_of_a_handful_of_tasks_are_counted(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    """As many were timed as make up 200,000 tasks: of five, 40,000 schedules in 3 s, whatever the limit of time said."""
    looked = list[bool]()
    step = crossings._Crossing.step

    def counting(self: crossings._Crossing, heat: float) -> bool:
        looked.append(step(self, heat))
        return looked[-1]

    monkeypatch.setattr(crossings._Crossing, "step", counting)
    problem = nearly_full(tasks)
    answer = List()(problem)
    full = [sum(held for held, lane in zip(problem.memory, answer.lanes, strict=True) if lane == each) for each in (0, 1)]
    assert max(full) <= problem.processors[0].memory
    assert 0 < sum(looked) <= 5_000 and len(looked) <= 50_000


def nearly_full(tasks: int) -> Problem:
    """Chains of two tasks on two equal processors that hold little more than half of all bytes each."""
    random = Random(tasks)
    seconds, held = ([random.uniform(1, 3) for _ in range(tasks)] for _ in range(2))
    half = tuple(Processor(name, 0, memory=0.54 * sum(held)) for name in "xy")
    edges = [(task, task + 1, ORDER) for task in range(0, tasks - 1, 2)]
    return Problem("full", tuple(map(str, range(tasks))), (Kind("gpu", {1: seconds}),), half, edges, memory=held)


def test_exchanges_leave_time_for_what_comes_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fifty tasks in full memory they took two seconds of two, and found nothing: what `auto` began at was 125% above the
    optimum, where even loads, half a second later, led `list` alone to 1.5%.
    """
    ends, cross = list[tuple[float, bool]](), starts.crossed

    def noted(problem: Problem, known: Found, least: float, until: float, counted: bool) -> Found | None:
        ends.append((until - perf_counter(), counted))
        return cross(problem, known, least, perf_counter(), counted)

    monkeypatch.setattr(starts, "crossed", noted)
    monkeypatch.setattr(crossings._Crossing, "step", lambda *_: pytest.fail("it was late"))
    starts.starts(nearly_full(8), 4, 0.0, perf_counter() + 1e4, counted=True)
    assert ends and all(left <= 5e3 and counted for left, counted in ends)


def test_what_is_counted_has_nearly_all_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters were cut short after half of it, so `auto` began at other schedules than `list` finds in the same time."""
    left: dict[str, float] = {}

    def noted(name: str, place: int) -> Callable[..., list[Found]]:
        def make(*given: object) -> list[Found]:
            until = given[place]
            assert isinstance(until, float)
            left[name] = until - perf_counter()
            return []

        return make

    monkeypatch.setattr(starts, "clustered", noted("clustered", 2))
    monkeypatch.setattr(starts, "widened", noted("widened", 3))
    starts.starts(passed_on(20), 4, 0.0, perf_counter() + 1e4, counted=True)
    assert left["clustered"] > 8e3 and left["widened"] > 8e3
    starts.starts(passed_on(20), 4, 0.0, perf_counter() + 1e4)
    assert left["clustered"] < 6e3 and left["widened"] < 6e3


def test_a_search_that_has_an_answer_makes_no_other_start_when_it_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of 10^5 tasks took 17 s of 10: clusters and even loads were made after that, beside an answer that was there."""
    made: list[str] = []

    def noted(name: str) -> Callable[..., NoReturn]:
        def make(*_: object) -> NoReturn:
            made.append(name)
            raise PlacementError(name)

        return make

    for name in ("clustered", "evenly"):
        monkeypatch.setattr(openings, name, noted(name))
    park, known = park_of(units_of(posed(20, "throughput"), contiguous=False)), [0] * 20
    assert len(openings.start(park, monotonic(), 0.0, monotonic(), [known])) == 20
    assert not made
    openings.start(park, monotonic(), 0.0, monotonic() + 60.0, [known])
    assert made
