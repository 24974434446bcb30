"""Orders that are written out here are those that the engine plans, gathering of parameters included."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from partitioner.distributed.pipeline.evenly import _even_ends
from partitioner.distributed.pipeline.order import _actions, order_of
from partitioner.distributed.pipeline.schedules import SCHEDULES
from partitioner.errors import SpecError


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(name for name, kind in SCHEDULES.items() if kind.several)),
    st.integers(1, 5),
    st.integers(2, 5),
    st.integers(1, 13),
)
def test_orders_of_several_stages_are_those_of_the_engine(name: str, ranks: int, each: int, count: int) -> None:
    """Up to five stages of a rank, of which the engine has the parameters of three gathered at once."""
    each = 2 if SCHEDULES[name].v else each
    try:
        planned = get_schedule_ops(SCHEDULES[name].make, ranks, count, each, with_comms=True)
    except ValueError:
        with pytest.raises(SpecError, match=f"schedule {name} on {ranks} ranks with {count} microbatches"):
            order_of(name, ranks, each, count)
        return
    assert order_of(name, ranks, each, count) == tuple(map(_actions, planned))


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0]) | st.floats(0, 9), min_size=1, max_size=9), st.data())
def test_rows_are_divided_for_the_shortest_longest_part(pieces: list[float], data: st.DataObject) -> None:
    """Beside all divisions."""
    count = data.draw(st.integers(1, len(pieces)))
    sums = [sum(pieces[:end]) for end in range(len(pieces) + 1)]

    def longest(parts: int, end: int) -> float:
        if parts == 1:
            return sums[end]
        return min(max(longest(parts - 1, cut), sums[end] - sums[cut]) for cut in range(parts - 1, end))

    ends = _even_ends(sums, count)
    assert len(ends) == count == len(set(ends)) and ends == sorted(ends) and ends[-1] == len(pieces) and ends[0] > 0
    found = max(sums[end] - sums[begin] for begin, end in zip([0, *ends], ends, strict=False))
    assert found == pytest.approx(longest(count, len(pieces)), abs=1e-12)
