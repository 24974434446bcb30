"""Contiguous makespans: strips of an order of the tasks keep every rule, and run at the same time where a graph lets them."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import pytest
from test_latency import anything, broken

from partitioner.errors import PlacementError
from partitioner.ir.problem import Processor
from partitioner.planner.latency.homes import closed
from partitioner.planner.latency.ranks import awaited
from partitioner.planner.latency.strips import in_strips
from partitioner.planner.policies.list import List

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from _shared_graphs import shared


@pytest.mark.parametrize("count", [250, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("shape", "most"), [("towers", 1.02), ("in-tree", 1.03), ("out-tree", 1.03), ("grid", 1.35)])
def test_parts_run_at_the_same_time(shape: str, most: float, count: int) -> None:
    """Placed by rank, neighbours went to different processors until paths had left all but one: from some hundred tasks on all
    was on that one, four times as long as it takes."""
    problem = shared(shape, count)
    answer = List()(problem)
    assert not broken(problem, tuple(problem.lanes[lane] for lane in answer.lanes))
    assert answer.cost <= most * answer.bound


def test_room_decides_where_an_order_is_cut() -> None:
    """What a processor's memory does not hold goes to the next one, although it could end it in time."""
    count = 200
    problem = shared("out-tree", count, memory=[1.0] * count)
    caps = 30.0, 60.0, 60.0, 60.0
    problem = replace(
        problem, processors=tuple(replace(each, memory=cap) for each, cap in zip(problem.processors, caps, strict=True))
    )
    best = in_strips(problem, 4, 0.0)[0]
    homes = [problem.lanes[lane] for lane in best.lanes]
    assert not broken(problem, tuple(homes))
    assert homes.count(0) == 30


def test_who_can_begin_has_the_first_strip() -> None:
    """A source that only the last device can run left all other ones without a strip, and so everything on one."""
    problem = shared("towers", 1000)
    gpu, host = problem.kinds[0], replace(problem.kinds[0], name="cpu", seconds={1: [1.0] + [inf] * 999})
    machine = (*problem.processors, Processor("cpu", 1))
    direct = {pair: (0,) for number in range(4) for pair in ((number, 4), (4, number))}
    problem = replace(problem, kinds=(gpu, host), processors=machine, routes=problem.routes | direct)
    answer = List()(replace(problem, pin={0: 4}))
    assert answer.cost <= 1.1 * answer.bound


@pytest.mark.parametrize("turns", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_strips_keep_every_rule(turns: int) -> None:
    """Pins, groups, memory, kinds that cannot run a task: strips are found often, and none breaks a rule."""
    random, found = Random(3), 0
    for _ in range(turns):
        problem = replace(anything(random, random.choice((2, 7, 24)), random.choice((2, 3))), contiguous=True)
        try:
            ruled = closed(problem)
            strips = in_strips(ruled, 8, 0.0)
        except PlacementError:  # nowhere to go, or pins that exclude each other
            continue
        found += bool(strips)
        for each in strips:
            assert not broken(problem, tuple(problem.lanes[lane] for lane in each.lanes))
    assert found >= turns / 4


def test_what_waits_for_a_task_is_urgent() -> None:
    """A rank is at least the longest way to the end, and all that must follow on any one processor; and each rank is more than
    that of a reader, so that an order by rank is topological."""
    random = Random(5)
    for _ in range(60):
        problem = replace(anything(random, 14, 3), pin={}, group=[], memory=())
        homes = [random.choice(problem.able[task] or [0]) for task in range(14)]
        own = [problem.seconds[home][task] for task, home in enumerate(homes)]
        rank, after = awaited(problem, homes, range(14)), problem.after
        follows: list[set[int]] = [set() for _ in homes]
        for task in reversed(range(14)):
            follows[task] = {*after[task], *(later for reader in after[task] for later in follows[reader])}
            work = [0.0] * len(problem.processors)
            for later in follows[task]:
                work[homes[later]] += own[later] / problem.processors[homes[later]].lanes
            assert rank[task] >= own[task] + max(work) - 1e-9
            assert all(rank[task] >= own[task] + rank[reader] - 1e-9 for reader in after[task])


def test_without_contiguity_there_are_none() -> None:
    assert not in_strips(shared("towers", 40, contiguous=False), 4, 0.0)
