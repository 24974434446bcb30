"""`Fit` and the objective `memory`: the fewest processors, cut where little passes; the smallest peak; beside brute force."""

from __future__ import annotations

from itertools import product
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import PlacementError
from partitioner.ir.problem import Channel, Kind, Problem, Processor
from partitioner.planner.assigned import held
from partitioner.planner.policies import decided
from partitioner.planner.policies.fit import Fit


def chain(memory: list[float], sizes: list[float], caps: list[float], **options: object) -> Problem:
    """Tasks in a row, each of which hands so many bytes to the next."""
    count = len(memory)
    edges = [(task, task + 1, task) for task in range(count - 1)]
    processors = tuple(Processor(f"p{number}", 0, memory=cap) for number, cap in enumerate(caps))
    routes = {(a, b): (0,) for a in range(len(caps)) for b in range(len(caps)) if a != b}
    kind = Kind("gpu", {1: [1.0] * count})
    names = tuple(f"t{number}" for number in range(count))
    link = (Channel("link", 1.0, 0.0, tuple(range(len(caps)))),)
    return Problem("chain", names, (kind,), processors, edges, list(enumerate(sizes)), link, routes, memory, **options)  # type: ignore[arg-type]


def homes(problem: Problem) -> list[int]:
    answer = Fit()(problem)
    return [problem.lanes[lane] for lane in answer.lanes]


def test_one_processor_if_one_holds_it() -> None:
    assert homes(chain([4, 4, 4], [9, 9, 9], [inf, inf])) == [0, 0, 0]
    assert set(homes(chain([4, 4, 4], [9, 9, 9], [4, 12, 8]))) == {1}, "the one that can"


def test_of_all_cuts_into_the_fewest_that_over_which_the_fewest_bytes_pass() -> None:
    assert homes(chain([2, 2, 2, 2], [9, 1, 9, 9], [6, 6])) == [0, 0, 1, 1]
    assert homes(chain([2, 2, 2, 2], [1, 9, 9, 9], [6, 6])) == [0, 1, 1, 1]


def test_of_equal_cuts_the_even_one() -> None:
    assert homes(chain([2, 2, 2, 2], [5, 5, 5, 5], [6, 6])) == [0, 0, 1, 1]


def test_what_no_row_of_segments_takes_is_packed() -> None:
    """5 5 3 3 on two processors of 8: consecutive ones would be 5 | 5 3 | 3."""
    found = homes(chain([5, 5, 3, 3], [1, 1, 1, 1], [8, 8]))
    assert sorted(held(chain([5, 5, 3, 3], [1, 1, 1, 1], [8, 8]), found)) == [8, 8]


def test_what_does_not_fit_is_told_with_the_numbers() -> None:
    with pytest.raises(PlacementError, match="15 B of memory were not brought onto 2 devices with 14 B"):
        Fit()(chain([5, 5, 5], [1, 1, 1], [7, 7]))


@given(st.randoms(use_true_random=False))
def test_as_few_as_brute_force_needs(rng: Random) -> None:
    caps = [float(rng.randint(3, 12)) for _ in range(rng.randint(1, 3))]
    memory = [float(rng.randint(0, 6)) for _ in range(rng.randint(1, 6))]
    group = [rng.choice((task, 0)) for task in range(len(memory))]
    problem = chain(memory, [1.0] * len(memory), caps, group=group)
    fits = [
        place
        for place in product(range(len(caps)), repeat=len(memory))
        if all(used <= cap for used, cap in zip(held(problem, place), caps, strict=True))
        and all(place[one] == place[other] for one in range(len(memory)) for other in range(one) if group[one] == group[other])
    ]
    try:
        found = homes(problem)
    except PlacementError:
        assert not fits
        return
    assert tuple(found) in fits


@given(st.randoms(use_true_random=False))
def test_the_smallest_peak_is_near_the_least_that_brute_force_finds(rng: Random) -> None:
    count = rng.randint(2, 3)
    memory = [float(rng.randint(0, 9)) for _ in range(rng.randint(1, 6))]
    problem = chain(memory, [1.0] * len(memory), [inf] * count, objective="memory")
    answer = decided(problem, Fit())
    least = min(max(held(problem, place)) for place in product(range(count), repeat=len(memory)))
    assert answer.bound <= least + 1e-9
    assert least - 1e-9 <= answer.cost <= least * 1.001 + 1e-9


def test_a_long_model_is_cut_quickly() -> None:
    count, processors = 20_000, 64
    problem = chain([1.0] * count, [1.0] * count, [400.0] * processors)
    answer = Fit()(problem)
    assert max(held(problem, [problem.lanes[lane] for lane in answer.lanes])) <= 400
    assert len(set(answer.lanes)) <= count // 400 + 3
