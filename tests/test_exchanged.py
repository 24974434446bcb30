"""Schedules of large graphs in which values travel, beside one that is known: every processor is busy from 0 to 100.

They are as large as are placed once or twice only, so what is decided before the first task is all there is.
"""

from __future__ import annotations

import sys
from itertools import permutations, product
from math import inf
from pathlib import Path
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.ir.problem import Channel, Kind, Problem, Processor
from partitioner.planner.latency.bounds import makespan_bound
from partitioner.planner.latency.passages import passage_bound
from partitioner.planner.policies.list import List
from partitioner.planner.timing import largest_load

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from _exchanged_graphs import exchanged
from _planted_graphs import END


@pytest.mark.parametrize("overlap", [True, False])
def test_one_schedule_of_unequal_processors_spares_their_time(overlap: bool) -> None:
    """Of 750 tasks and more there is one, by earliest ends: it took 12% longer than it must, and 30% if nothing overlaps."""
    asked = [exchanged(Random(1), 4, 800, "unequal", overlap, host) for host in (True, False)]
    assert mean(List()(each).cost for each in asked) <= 1.05 * END


def test_two_large_groups_do_not_meet_on_one_processor() -> None:
    """A group goes where its first task ends first, and so did the next one: two to three times the time of them apart."""
    asked = [exchanged(Random(1), 4, count, "grouped", False, True) for count in (300, 1000)]
    assert mean(List()(each).cost for each in asked) <= 1.03 * END


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(["unequal", "grouped"]), st.booleans(), st.booleans())
def test_no_bound_is_above_a_schedule_that_is_known(seed: int, sort: str, overlap: bool, host: bool) -> None:
    assert makespan_bound(exchanged(Random(seed), 3, 30, sort, overlap, host)) <= END * (1 + 1e-9)


@pytest.mark.parametrize("host", [True, False])
def test_what_must_travel_is_work_where_nothing_overlaps(host: bool) -> None:
    """The bound left passages out: a plan that took 100.3 of 100 was said to be up to 11% too long."""
    problem = exchanged(Random(1), 4, 100, "unequal", False, host)
    assert makespan_bound(problem) == pytest.approx(END)


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_passages_that_are_counted_are_made_by_every_placement(seed: int) -> None:
    """Beside the largest load of every placement: any routes, lanes, groups, readers, and tasks that some cannot run."""
    draw = Random(seed)
    count, tasks = draw.randint(2, 3), draw.randint(2, 6)
    rows = [[inf if place and draw.random() < 0.2 else draw.uniform(0, 9) for _ in range(tasks)] for place in range(count)]
    edges = sorted({(one, two, one) for two in range(tasks) for one in range(two) if draw.random() < 0.5})
    links = [*((each,) for each in range(count)), *permutations(range(count), 2)]
    direct = {way: (links.index(way),) for way in permutations(range(count), 2)}
    hosted = {(one, two): (one, two) for one, two in direct}
    problem = Problem(
        "small",
        tuple(map(str, range(tasks))),
        tuple(Kind(str(place), {1: row}) for place, row in enumerate(rows)),
        tuple(Processor(str(place), place, lanes=draw.randint(1, 2)) for place in range(count)),
        edges,
        [(task, draw.uniform(0, 3)) for task in range(tasks)],
        tuple(Channel(str(ends), draw.uniform(0.5, 2), draw.uniform(0, 1), ends) for ends in links),
        {way: draw.choice([direct, hosted])[way] for way in direct},
        group=[draw.randint(0, 4) for _ in range(tasks)] if draw.random() < 0.3 else (),
        overlap=False,
    )
    group = problem.group_of
    every = (
        homes for homes in product(range(count), repeat=tasks) if len({*zip(group, homes, strict=True)}) == len(set(group))
    )
    least = min((largest_load(problem, homes) for homes in every), default=inf)
    assert passage_bound(problem) <= least * (1 + 1e-9)
