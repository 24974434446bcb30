"""Schedules cut out of full processors: the optimum is known without a solver, at sizes where no solver is of use.

    p0  | a |   c   |  e  |        every processor is busy from 0 to the end, and each task is where it is fastest: no schedule
    p1  |    b    |d|  f  |        ends earlier. Policies see tasks, edges and times, and not the schedule.

Elsewhere a task takes 1.2 to 4 times as long.
"""

from __future__ import annotations

from itertools import pairwise, permutations
from math import inf
from random import Random
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.problem import ORDER, Channel, Kind, Problem, Processor
from partitioner.planner.latency.bounds import makespan_bound
from partitioner.planner.latency.homes import Homes
from partitioner.planner.latency.improve import improved
from partitioner.planner.latency.prices import able_seconds, priced, prices, waste
from partitioner.planner.latency.tries import several
from partitioner.planner.policies.list import List
from partitioner.planner.policies.search import Search
from partitioner.planner.timing import timed

END = 100.0


def planted(random: Random, processors: int, each: int, linked: bool = False, tight: bool = False) -> Problem:
    """``each`` tasks fill every processor from 0 to 100; edges where a task ends before another one starts.

    Args:
        random: of cuts, edges, and seconds where a task is not at home.
        processors: each of a kind of its own.
        each: tasks of a processor.
        linked: values have bytes and travel; in the schedule, all of them have time to.
        tight: tasks hold memory, of which processors have 2% more than the schedule needs.
    """
    cuts = [[0.0, *sorted(random.uniform(0, END) for _ in range(each - 1)), END] for _ in range(processors)]
    spans = sorted((start, end, home) for home, cut in enumerate(cuts) for start, end in pairwise(cut))
    kinds = tuple(
        Kind(f"k{other}", {1: [(end - start) * (1 if home == other else random.uniform(1.2, 4)) for start, end, home in spans]})
        for other in range(processors)
    )
    held = [random.uniform(1, 4) for _ in spans] if tight else []
    caps = [sum(size for size, span in zip(held, spans, strict=False) if span[2] == home) for home in range(processors)]
    pairs = list(permutations(range(processors), 2)) if linked else []
    edges, values = _edges(random, spans, linked)
    return Problem(
        "planted",
        tuple(f"t{number}" for number in range(len(spans))),
        kinds,
        tuple(Processor(f"p{home}", home, memory=1.02 * cap if tight else inf) for home, cap in enumerate(caps)),
        edges,
        values,
        tuple(Channel(f"{one} to {other}", 1.0, 0.5, (one, other)) for one, other in pairs),
        {pair: (number,) for number, pair in enumerate(pairs)},
        memory=held,
    )


def _edges(
    random: Random, spans: list[tuple[float, float, int]], linked: bool
) -> tuple[list[tuple[int, int, int]], list[tuple[int, float]]]:
    """Up to three readers of a task, of those next to start; elsewhere only where its value is there by then."""
    edges: list[tuple[int, int, int]] = []
    values: list[tuple[int, float]] = []
    free: dict[tuple[int, int], float] = {}  # when a link is
    for source, (_, end, home) in enumerate(spans):
        size, there = random.uniform(0.5, 2), {home: end}
        later = [task for task in range(source + 1, len(spans)) if spans[task][0] >= end][:12]
        for target in random.sample(later, min(len(later), random.randint(0, 3))):
            start, _, away = spans[target]
            arrives = there.get(away, max(end, free.get((home, away), 0.0)) + 0.5 + size) if linked else end
            if arrives <= start:
                edges.append((source, target, len(values) if linked else ORDER))
                if away not in there and linked:
                    there[away] = free[home, away] = arrives
        values += [(source, size)] if linked else []
    return edges, values


SORTS = {"plain": {}, "linked": {"linked": True}, "tight": {"tight": True}}


@pytest.mark.parametrize("sort", SORTS)
def test_the_planted_schedule_is_the_best_there_is(sort: str) -> None:
    """The makespan of the tasks at home, in the order in which they were cut, is the bound."""
    for seed in range(5):
        problem = planted(Random(seed), 4, 10, **SORTS[sort])
        table = able_seconds(problem)
        clock = timed(problem, table.argmin(axis=0).tolist(), range(len(problem.tasks)))
        assert clock.makespan == pytest.approx(END) == pytest.approx(makespan_bound(problem), rel=0.01)


@pytest.mark.parametrize(("sort", "quick", "searched"), [("plain", 1.1, 1.06), ("linked", 1.1, 1.06), ("tight", 1.16, 1.1)])
def test_policies_come_close_to_planted_optima(sort: str, quick: float, searched: float) -> None:
    """Earliest ends alone leave a fifth: a task on the wrong processor takes time from all that come after it there."""
    asked = [planted(Random(seed), 4, 19, **SORTS[sort]) for seed in range(4)]
    assert mean(List(tries=1)(each).cost for each in asked) > 1.18 * END, "or else there is nothing to gain"
    assert mean(List()(each).cost for each in asked) <= quick * END
    found = [improved(each, several(each, Homes(each), 16), END, inf, 0, most=12_000) for each in asked]
    assert mean(each.seconds for each in found) <= searched * END


def test_tight_memory_is_filled_as_even_loads_fill_it() -> None:
    """Twenty tasks, five on each processor, 2% of memory to spare: earliest ends fill it so that nothing can be exchanged."""
    pytest.importorskip("ortools")
    asked = [planted(Random(seed), 4, 5, tight=True) for seed in range(4)]
    assert mean(List()(each).cost for each in asked) > 1.5 * END, "or else there is nothing to gain"
    assert mean(Search(time_limit=4.0)(each).cost for each in asked) <= 1.1 * END


@given(st.integers(0, 10**6), st.integers(2, 5))
def test_prices_are_paid_by_no_schedule(seed: int, processors: int) -> None:
    """No schedule does more than a priced second of work in a second, and none is wasted where a task belongs."""
    random = Random(seed)
    problem = planted(random, processors, random.randint(1, 8))
    cost, capacity = able_seconds(problem), np.ones(processors)
    price = prices(cost, capacity)
    assert price.min() >= 0 and price.sum() == pytest.approx(1)
    assert priced(cost, capacity).sum() <= END * (1 + 1e-9)
    lost = waste(problem)
    assert lost.min() >= 0 and (lost.min(axis=1) == 0).all()


def test_search_is_no_worse_than_its_best_start() -> None:
    for seed in range(6):
        problem = planted(Random(seed), 3, 12, tight=seed % 2 == 0)
        starts = several(problem, Homes(problem), 16)
        assert [each.seconds for each in starts] == sorted(each.seconds for each in starts)
        found = [improved(problem, starts, 0.0, inf, seed, most=1500) for _ in range(2)]
        assert found[0].seconds <= starts[0].seconds and found[0].order == found[1].order
