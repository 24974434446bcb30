"""Blocks of tasks that exchange much among themselves and little with others, one for each processor, which keep it full.

    a-b   c-d      each block is as much work as any other, and a value within it takes an eighth to a third of that to send;
    |X|   |X|      between blocks, values are short
    e-f - g-h

Computing and moving overlap, so the work of a block is the largest load of the placement that is known, and a bound.
"""

from __future__ import annotations

from itertools import permutations
from math import inf
from random import Random
from typing import Any

import pytest

from partitioner.ir.problem import Channel, Kind, Problem, Processor
from partitioner.planner.latency.homes import Homes
from partitioner.planner.policies.list import List
from partitioner.planner.throughput import fitting, model
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.levels import BLOCKS, clustered, levels_of
from partitioner.planner.throughput.prices import park_of

EACH, WORK = 80, 8_000
"""Tasks of a block, and their seconds together."""


def blocks(processors: int, alone: float = 0.0, **rules: Any) -> Problem:
    """A block for each processor; that part of the tasks, ``alone``, can run on its block's processor only."""
    draw, edges, count = Random(processors), set[tuple[int, int]](), processors * EACH
    seconds: list[float] = []
    for first in range(0, count, EACH):
        drawn = [draw.randint(1, 199) for _ in range(EACH)]
        seconds += [each * WORK / sum(drawn) for each in drawn]
        edges |= {(draw.randrange(max(first, task - 8), task), task) for task in range(first + 1, first + EACH) for _ in "abc"}
    sizes = [draw.uniform(WORK / 8, WORK / 3) for _ in seconds]
    makers = {source for source, _ in edges}
    for last in (task for task in range(count - EACH) if task not in makers):
        sizes[last] = draw.uniform(1, WORK / 60)
        edges.add((last, (last // EACH + 1) * EACH + draw.randrange(EACH)))
    table = [list(seconds) for _ in range(processors if alone else 1)]
    for task in (each for each in range(count) if draw.random() < alone):
        for kind in set(range(processors)) - {task // EACH}:
            table[kind][task] = inf
    ways = list(permutations(range(processors), 2))
    return Problem(
        "blocks",
        tuple(f"t{task}" for task in range(count)),
        tuple(Kind(f"k{number}", {1: row}) for number, row in enumerate(table)),
        tuple(Processor(f"p{number}", number % len(table)) for number in range(processors)),
        [(source, target, source) for source, target in sorted(edges)],
        [*enumerate(sizes)],
        tuple(Channel(f"{way}", 1.0, 0.0, way) for way in ways),
        {way: (number,) for number, way in enumerate(ways)},
        objective="throughput",
        **rules,
    )


@pytest.mark.parametrize(("alone", "contiguous"), [(0.0, False), (0.0, True), (0.1, False)])
def test_tasks_that_exchange_much_share_a_processor(alone: float, contiguous: bool) -> None:
    """Of more than 600 tasks on processors that are alike nothing was joined: loads were 1.3 to 3.9 times the bound."""
    answer = List()(blocks(8, alone, contiguous=contiguous))
    assert answer.bound == pytest.approx(WORK) and answer.cost <= 1.02 * WORK


def test_what_exchanges_little_is_not_joined() -> None:
    """In pairs, the odd one of a block joined that of another one, and what was placed was of two blocks."""
    problem = blocks(8)
    park = park_of(units_of(problem, contiguous=False))
    for level in levels_of(park, BLOCKS):
        assert all(len({task // EACH for task in tasks}) == 1 for tasks in level.units.members)
    assert clustered(park, Homes(problem), WORK, inf)[0] <= 1.02 * WORK


def test_prices_say_nothing_where_processors_differ_in_what_they_cannot_run() -> None:
    assert not park_of(units_of(blocks(4, 0.1), contiguous=False)).apart


def test_no_model_is_built_that_takes_longer_than_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,880 tasks on 32 processors it took 40 s, of five that there were, and `auto` had ten in all."""
    pytest.importorskip("ortools")
    monkeypatch.setattr(model, "start_up", lambda _: inf)
    monkeypatch.setattr(model, "Model", lambda *_: pytest.fail("it was built"))
    assert fitting._modelled(park_of(units_of(blocks(2), contiguous=False)), 1e9) == fitting.Found(None, False)
