"""Bounds of what one processor must do: what would come too late from elsewhere, and what lies between two of its tasks."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from test_latency import check, problems

from partitioner.ir.problem import Channel, Kind, Problem, Processor
from partitioner.planner.latency.bounds import longest_path, makespan_bound
from partitioner.planner.latency.homes import closed
from partitioner.planner.latency.intervals import interval_bound
from partitioner.planner.latency.together import together_bound
from partitioner.planner.policies import Exact, List


def passing(seconds: list[float], pairs: list[tuple[int, int]], size: float, processors: int = 2, **rules: Any) -> Problem:
    """Equal processors with links of 1 byte/s between any two; each task makes one value for all that read it."""
    ways = [(one, other) for one in range(processors) for other in range(processors) if one != other]
    edges, values = [(source, target, source) for source, target in pairs], [(task, size) for task in range(len(seconds))]
    memory = rules.pop("cap", float("inf"))
    return Problem(
        "passing",
        tuple(f"t{task}" for task in range(len(seconds))),
        (Kind("gpu", {1: seconds}),),
        tuple(Processor(f"gpu{number}", 0, memory=memory) for number in range(processors)),
        edges,
        values,
        tuple(Channel(f"{way}", 1.0, 0.0, way) for way in ways),
        {way: (number,) for number, way in enumerate(ways)},
        **rules,
    )


def test_two_that_are_read_together_are_made_one_after_the_other_or_travel() -> None:
    """Each of them may be where it is read, so nothing had to travel: a join of 3 and 4 seconds was said to begin after 4."""
    join, fork = [(0, 2), (1, 2)], [(0, 1), (0, 2)]
    for seconds, pairs in (([3.0, 4.0, 1.0], join), ([1.0, 4.0, 3.0], fork)):
        assert longest_path(passing(seconds, pairs, 9.0)) == 5.0
        assert makespan_bound(passing(seconds, pairs, 9.0)) == pytest.approx(8.0)  # all on one
        assert makespan_bound(passing(seconds, pairs, 2.0)) == pytest.approx(6.0)  # the one of 3 seconds comes from elsewhere
        assert List()(passing(seconds, pairs, 2.0)).cost == 6.0


def test_what_does_not_fit_beside_a_task_comes_from_elsewhere() -> None:
    """Of four tasks of one byte three fit, so something travels: the bound was that of all on one processor."""
    chain = passing([1.0] * 4, [(0, 1), (1, 2), (2, 3)], 5.0, memory=[1.0] * 4, cap=3.0)
    assert makespan_bound(chain) == pytest.approx(9.0) == pytest.approx(List()(chain).cost)


def test_a_graph_that_may_not_be_cut_is_on_one_processor() -> None:
    """Nothing waits for all of a ladder of joins: only together do its tasks say that they have one processor."""
    ladder = passing([1.0] * 9, [(0, 5), (1, 5), (1, 6), (2, 6), (2, 7), (3, 7), (3, 8), (4, 8)], 50.0, processors=3)
    assert makespan_bound(ladder) == pytest.approx(9.0) == pytest.approx(List()(ladder).cost)
    crossed = replace(ladder, processors=tuple(replace(each, memory=8.0) for each in ladder.processors), memory=[1.0] * 9)
    assert makespan_bound(crossed) == pytest.approx(52.0) == pytest.approx(Exact(time_limit=5.0)(crossed).cost)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_no_bound_is_above_a_schedule(seed: int) -> None:
    pytest.importorskip("ortools")
    better = 0
    for problem in problems(12, (4, 6, 7), (2, 3), seed=40 + seed):
        answer = Exact(time_limit=1.0, workers=1)(problem)
        check(problem, answer)
        found = max(together_bound(problem), together_bound(closed(problem)))
        assert found <= answer.cost * (1 + 1e-9), problem
        better += found > longest_path(closed(problem)) * (1 + 1e-9)
    assert better, "it says nothing that paths do not"


@pytest.mark.parametrize("seed", range(6))
def test_graphs_of_joins_have_a_bound_near_their_optimum(seed: int) -> None:
    """Where passages are long, gaps of 20 to 100% were the bound's and not the plan's."""
    draw = Random(seed)
    pairs = sorted({(source, target) for target in range(4, 14) for source in draw.sample(range(target), 2)})
    problem = passing([float(draw.randint(1, 9)) for _ in range(14)], pairs, 12.0, processors=3)
    answer = List()(problem)
    assert longest_path(problem) < 0.8 * answer.cost
    assert answer.bound >= 0.85 * answer.cost


def test_passages_that_readers_fetch_leave_the_makers_processor_alone() -> None:
    """A model for CP-SAT kept both ends busy though values were fetched, and proved more than a schedule takes."""
    pytest.importorskip("ortools")
    pairs, rules = [(0, 1), (0, 4), (1, 2), (1, 3)], {"overlap": False, "fetched": True}
    problem = passing([1.0, 2.0, 5.0, 4.0, 3.0], pairs, 2.0, memory=[1.0] * 5, cap=3.0, **rules)
    answer = Exact(time_limit=2.0, workers=1)(problem)
    assert answer.bound <= answer.cost == List()(problem).cost == 11.0


def experts(blocks: int, each: int) -> list[tuple[int, int]]:
    """Blocks one after the other, of a task, some that read it, and one that reads all of these."""
    pairs, last = list[tuple[int, int]](), 0
    for _ in range(blocks):
        inner = range(last + 1, last + 1 + each)
        pairs += [(last, task) for task in inner] + [(task, last + 1 + each) for task in inner]
        last += 1 + each
    return pairs


def test_contiguous_parts_have_all_that_lies_between_two_of_their_tasks() -> None:
    """Makespans of blocks of experts were said to be 56 and 92% above the bound, which knew the work and the longest path."""
    blocks = passing([1.0] * 21, experts(4, 4), 0.0, contiguous=True)
    assert makespan_bound(replace(blocks, contiguous=False)) == pytest.approx(11.5)
    answer = List()(blocks)
    assert interval_bound(blocks) == pytest.approx(18.0) == pytest.approx(answer.bound)
    assert answer.cost == 19.0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_no_bound_of_contiguous_parts_is_above_a_schedule(seed: int) -> None:
    pytest.importorskip("ortools")
    draw, better = Random(seed), 0
    for _ in range(8):
        pairs = sorted({(source, target) for target in range(1, 9) for source in draw.sample(range(target), min(target, 2))})
        seconds, size = [float(draw.randint(1, 9)) for _ in range(9)], float(draw.randint(0, 3))
        problem = closed(passing(seconds, pairs, size, draw.choice((2, 3)), contiguous=True))
        answer = Exact(time_limit=1.0, workers=1)(problem)
        check(problem, answer)
        assert interval_bound(problem) <= answer.cost * (1 + 1e-9)
        better += interval_bound(problem) > longest_path(problem)
    assert better
