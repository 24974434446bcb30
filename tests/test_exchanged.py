"""Schedules of large graphs in which values travel, beside one that is known: every processor is busy from 0 to 100.

They are as large as are placed once or twice only, so what is decided before the first task is all there is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitioner.planner.latency.bounds import makespan_bound
from partitioner.planner.policies.list import List

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
