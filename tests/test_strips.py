"""Contiguous makespans: strips of an order of the tasks keep every rule, and run at the same time where a graph lets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from test_latency import anything, broken

from partitioner.errors import PlacementError
from partitioner.ir.problem import Channel, Kind, Problem, Processor
from partitioner.planner.latency.homes import closed
from partitioner.planner.latency.ranks import awaited
from partitioner.planner.latency.strips import in_strips
from partitioner.planner.policies.list import List

Edges = list[tuple[int, int]]

# Graphs that four processors can share, one convex part each -----------------------------------------------------------


def towers(count: int) -> Edges:
    inner = range(1, count - 1)
    ends = [(0, task) for task in inner[:8]] + [(task, count - 1) for task in inner[-8:]]
    return ends + [(task, task + 8) for task in inner[:-8]]


def in_tree(count: int) -> Edges:
    return [(count - 1 - task, count - 1 - (task - 1) // 2) for task in range(1, count)]


def out_tree(count: int) -> Edges:
    return [((task - 1) // 2, task) for task in range(1, count)]


def grid(count: int) -> Edges:
    wide = int(count**0.5)
    along = [(task, task + 1) for task in range(count - 1) if (task + 1) % wide]
    return along + [(task, task + wide) for task in range(count - wide)]


def shared(count: int, edges: Edges, **more: object) -> Problem:
    """A graph on four equal processors, one link from each to each, on which a value takes a hundredth of a task."""
    random, makers = Random(count), sorted({source for source, _ in edges})
    seconds = [random.uniform(0.5, 2.0) for _ in range(count)]
    pairs = [(one, other) for one in range(4) for other in range(4) if one != other]
    return Problem(
        "shared",
        tuple(f"t{task}" for task in range(count)),
        (Kind("gpu", {1: seconds}),),
        tuple(Processor(f"gpu{number}", 0) for number in range(4)),
        [(source, target, makers.index(source)) for source, target in sorted(edges)],
        [(maker, 1.0) for maker in makers],
        tuple(Channel(f"{pair}", 100.0, 0.0, pair) for pair in pairs),
        {pair: (number,) for number, pair in enumerate(pairs)},
        contiguous=True,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("count", [250, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("edges", "most"), [(towers, 1.02), (in_tree, 1.03), (out_tree, 1.03), (grid, 1.35)])
def test_parts_run_at_the_same_time(edges: Callable[[int], Edges], most: float, count: int) -> None:
    """Placed by rank, neighbours went to different processors until paths had left all but one: from some hundred tasks on all
    was on that one, four times as long as it takes."""
    problem = shared(count, edges(count))
    answer = List()(problem)
    assert not broken(problem, tuple(problem.lanes[lane] for lane in answer.lanes))
    assert answer.cost <= most * answer.bound


def test_room_decides_where_an_order_is_cut() -> None:
    """What a processor's memory does not hold goes to the next one, although it could end it in time."""
    count = 200
    problem = shared(count, out_tree(count), memory=[1.0] * count)
    caps = 30.0, 60.0, 60.0, 60.0
    problem = replace(
        problem, processors=tuple(replace(each, memory=cap) for each, cap in zip(problem.processors, caps, strict=True))
    )
    best = in_strips(problem, 4, 0.0)[0]
    homes = [problem.lanes[lane] for lane in best.lanes]
    assert not broken(problem, tuple(homes))
    assert homes.count(0) == 30


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
    assert not in_strips(replace(shared(40, towers(40)), contiguous=False), 4, 0.0)
