"""Graphs whose optimum is known by theory, and who judges answers to them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import _full_schedules
import planner
from _known_optima import FAMILIES
from _random_graphs import optimum as proven_optimum
from _scorers import known_faults, load_faults

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.policies import List
from partitioner.spec.taskgraph import read_problem
from partitioner.spec.taskmachine import read_machine

PROVABLE = ("two processors", "interval orders", "level orders")
"""Families whose smallest graph the model is done with in a second."""


@pytest.mark.parametrize("family", FAMILIES)
def test_list_is_near_the_optimum_and_never_below_it(family: str) -> None:
    pytest.importorskip("ortools")
    problem, optimum = next(FAMILIES[family]())
    answer = List()(problem)
    assert known_faults(problem, optimum, answer) == []
    assert answer.cost <= optimum * (1.05 if family == "level orders" else 1.03)


@pytest.mark.parametrize("family", PROVABLE)
def test_a_model_that_knows_no_theory_finds_the_same_optimum(family: str) -> None:
    """A dynamic program that waited until no other state was left took 26 seconds where 22 do."""
    pytest.importorskip("ortools")
    problem, optimum = next(FAMILIES[family]())
    assert proven_optimum(problem, 20.0) == (optimum, True)


def chain(**more: Any) -> Problem:
    """Three tasks in a row on two devices, whose values take two seconds."""
    tasks = [{"name": name, "seconds": seconds, "output": 2} for name, seconds in (("a", 3), ("b", 4), ("c", 5))]
    devices = [{"name": name, "kind": "gpu"} for name in ("x", "y")]
    machine = {"devices": devices, "links": [{"between": ["x", "y"], "bandwidth": 1}], **more}
    return read_problem(
        {"tasks": tasks, "edges": [["a", "b"], ["b", "c"]]}, read_machine(machine), "throughput", contiguous=True
    )


@pytest.mark.parametrize(
    ("overlap", "homes", "cost", "words"),
    [
        (False, [0, 0, 0], 12.0, ""),
        (False, [0, 0, 1], 9.0, ""),  # x: 3 + 4 and sends for 2
        (True, [0, 0, 1], 7.0, ""),
        (False, [0, 0, 1], 7.0, "the load is 9.0, and the answer says 7.0"),
        (False, [0, 1, 0], 12.0, "a path leaves x and comes back at task 2"),
    ],
)
def test_loads_are_added_up_anew(overlap: bool, homes: list[int], cost: float, words: str) -> None:
    problem = chain(overlap=overlap)
    answer = Assignment("by hand", problem.tasks, homes, range(3), cost=cost, objective="throughput")
    assert load_faults(problem, answer) == ([words] if words else [])


def test_an_answer_on_the_wrong_side_of_an_optimum_is_a_fault() -> None:
    answer = replace(List()(chain()), bound=6.0)
    assert known_faults(chain(), answer.cost, answer) == []
    assert "is below the optimum 20.0" in known_faults(chain(), 20.0, answer)[0]
    assert known_faults(chain(), 5.0, answer) == ["the bound 6.0 is above the optimum 5.0"]


def _fails() -> Iterator[tuple[Problem, float]]:
    raise ValueError("no graph")


@pytest.mark.parametrize(
    ("family", "words", "code"),
    [
        (lambda: iter([(chain(), 7.0)]), "none", 0),
        (lambda: iter([(chain(), 20.0)]), "is below the optimum 20.0", 1),
        (_fails, "ValueError: no graph", 1),
    ],
)
def test_the_section_ends_with_an_error_where_something_is_wrong(
    family: Callable[[], Any], words: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_full_schedules, "FAMILIES", {"made up": family})
    assert planner.main(["--quick", "--only", "theory"]) == code
    assert words in capsys.readouterr().out


def test_a_thousand_tasks_fill_memory_to_the_last_byte() -> None:
    """Graphs of that size have one schedule, which filled memory as tasks came: 960 took 3.3 times as long as they need."""
    for problem, optimum in islice(FAMILIES["full memory"](), 4, None):
        assert List()(problem).cost <= 1.005 * optimum
