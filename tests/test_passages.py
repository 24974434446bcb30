"""Schedules of task graphs that were once wrong: what takes no time waits for nothing, and what is known is not excluded."""

from __future__ import annotations

from random import Random

import pytest

from partitioner import plan
from partitioner.ir.problem import Channel, Kind, Problem, Processor
from partitioner.planner.latency.quick import Quick
from partitioner.planner.resources import Busy, common_gap, gap_of_two
from partitioner.planner.timing import timed


def test_a_message_of_no_bytes_passes_a_link_that_is_busy() -> None:
    """It waited for the end of whatever was on its way, though it keeps the link for no time."""
    seconds, link = Kind("gpu", {1: [1.0, 2.0, 1.0, 3.0]}), Channel("x - y", 1.0, 0.0, (0, 1))
    names, both = ("large", "small", "reads large", "reads small"), (Processor("x", 0), Processor("y", 0))
    routes, edges = {(0, 1): (0,), (1, 0): (0,)}, [(0, 2, 0), (1, 3, 1)]
    problem = Problem("two", names, (seconds,), both, edges, [(0, 10.0), (1, 0.0)], (link,), routes)
    lanes, order = [0, 0, 1, 1], [0, 1, 2, 3]
    assert timed(problem, lanes, order).start == [0.0, 1.0, 11.0, 3.0]
    assert Quick(problem)(order, lanes).start == [0.0, 1.0, 11.0, 3.0]


def test_a_schedule_that_is_known_is_not_excluded_by_the_solver() -> None:
    """CP-SAT 9.15 calls the model infeasible in which intervals share a variable for their end; it was an AssertionError."""
    pytest.importorskip("ortools")
    tasks = [
        {"name": "a", "seconds": 3, "output": 2},
        {"name": "b", "seconds": 6, "output": 6},
        {"name": "c", "seconds": {"x": 7, "y": 1, "z": 5}},
        {"name": "d", "seconds": {"x": 3, "z": 8}, "output": 6, "group": "g"},
        {"name": "e", "seconds": 6, "group": "g"},
    ]
    links = [
        {"between": ["x", "y"], "bandwidth": 2, "latency": 1},
        {"between": ["x", "z"], "bandwidth": 1},
        {"between": ["y", "z"], "bandwidth": 2},
    ]
    machine = {"devices": [{"name": name, "kind": name} for name in "xyz"], "links": links}
    found = plan({"tasks": tasks, "edges": [["d", "c"], ["e", "c"]]}, machine, policy="exact", time_limit=3)
    assert found.makespan == found.lower_bound == 11.0


def test_a_gap_behind_many_short_ones_is_found() -> None:
    """After 32 of them a passage went to the end of all; where memory is tight, that made schedules 4% longer."""
    link, lane = Busy(), Busy()
    for number in range(40):
        link.take(number, number + 0.5)
    link.take(41.5, 42.0)
    lane.take(0.0, 0.1)
    assert common_gap([link, lane], 0.0, 1.0) == 39.5


@pytest.mark.parametrize("taken", [3, 20, 3_000])
def test_a_gap_of_two_is_a_common_gap(taken: int) -> None:
    """Searches ask for it by a way of its own; behind thousands of intervals both give up at one place."""
    draws = Random(taken)
    for _ in range(200 if taken < 100 else 5):
        lines = Busy(), Busy()
        for line in lines:
            end = 0.0
            for _ in range(taken):
                begin = end + draws.randrange(3) / 2
                end = begin + draws.randrange(1, 4) / 2
                line.take(begin, end)
        for ready in (0.0, taken / 4, 2.0 * taken):
            seconds = draws.randrange(1, 8) / 4
            assert gap_of_two(*lines, ready, seconds) == common_gap(lines, ready, seconds)
