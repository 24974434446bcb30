"""Orders of schedules, and the clock that plays them: beside torch's plans, the formulas of papers, and the longest path."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from partitioner.distributed.pipeline.order import Action, Order, order_of
from partitioner.distributed.pipeline.schedules import SCHEDULES
from partitioner.distributed.pipeline.timeline import StageTimes, most_kept, played
from partitioner.errors import SpecError

WHOLE = ("gpipe", "1f1b", "looped_bfs", "interleaved_1f1b")
"""Schedules that do a backward at once."""

SPLIT = ("interleaved_zero_bubble", "zbv_zero_bubble")

seconds = st.integers(0, 20).map(float)
some_times = st.builds(StageTimes, st.integers(1, 20).map(float), st.integers(2, 40).map(float), seconds, seconds)


@st.composite
def orders(draw: st.DrawFn) -> tuple[Order, list[StageTimes]]:
    name = draw(st.sampled_from([*WHOLE, *SPLIT]))
    ranks, each = draw(st.integers(1, 4)), 2 if SCHEDULES[name].several else 1
    count = ranks * draw(st.integers(1, 3))
    return order_of(name, ranks, each, count), [draw(some_times) for _ in range(ranks * each)]


def work(action: Action, times: StageTimes) -> float:
    return {"F": times.forward, "B": times.backward, "I": times.backward / 2, "W": times.backward / 2}.get(action.what, 0.0)


def longest(order: Order, times: list[StageTimes]) -> float:
    """The longest path through all that waits for something, as a graph: an answer of its own, where channels are free."""
    graph: nx.DiGraph[object] = nx.DiGraph()
    holder = {action.stage: rank for rank, actions in enumerate(order) for action in actions}
    whole = {(action.stage, action.microbatch): action for actions in order for action in actions if action.what in ("B", "I")}
    for actions in order:
        steps = ["start", *actions]
        for one, other in pairwise(steps):
            graph.add_edge(one, other, seconds=0.0 if one == "start" else work(one, times[one.stage]))
    for action in (action for actions in order for action in actions):
        stage, what, number = action
        after = Action(stage + 1, "F", number) if what == "F" else whole.get((stage - 1, number))
        if what in ("F", "B", "I") and after is not None and after.stage in holder:
            apart = holder[stage] != holder[after.stage]
            sent = (times[stage].sent if what == "F" else times[stage].returned) if apart else 0.0
            graph.add_edge(action, after, seconds=work(action, times[stage]) + sent)
    for actions in order:
        graph.add_edge(actions[-1], "end", seconds=work(actions[-1], times[actions[-1].stage]))
    return float(nx.dag_longest_path_length(graph, weight="seconds"))


@given(orders())
def test_the_clock_finds_the_longest_path(case: tuple[Order, list[StageTimes]]) -> None:
    """Exactly, where messages take no time; and at least, where they may wait for each other."""
    order, times = case
    silent = [replace(each, sent=0.0, returned=0.0) for each in times]
    assert played(order, silent).step == pytest.approx(longest(order, silent))
    assert played(order, _across(order, times)).step >= longest(order, times) * (1 - 1e-9)


def _across(order: Order, times: list[StageTimes]) -> list[StageTimes]:
    """Times as the clock takes them: no message between stages of one rank."""
    holder = {action.stage: rank for rank, actions in enumerate(order) for action in actions}
    return [
        replace(
            each,
            sent=each.sent if holder.get(stage + 1, holder[stage]) != holder[stage] else 0.0,
            returned=each.returned if holder.get(stage - 1, holder[stage]) != holder[stage] else 0.0,
        )
        for stage, each in enumerate(times)
    ]


@given(orders())
def test_a_rank_is_busy_for_as_long_as_its_work_takes(case: tuple[Order, list[StageTimes]]) -> None:
    order, times = case
    found = played(order, times)
    assert found.busy == pytest.approx([sum(work(action, times[action.stage]) for action in actions) for actions in order])
    assert found.step >= max(found.busy) and 0 <= found.bubble < 1


@given(st.sampled_from(WHOLE), st.integers(1, 6), st.integers(1, 4))
def test_even_stages_give_the_published_bubble(name: str, ranks: int, rounds: int) -> None:
    """(p - 1) / (v m + p - 1), exactly, for GPipe, 1F1B, interleaved 1F1B and looped BFS."""
    each, count = 2 if SCHEDULES[name].several else 1, ranks * rounds
    found = played(order_of(name, ranks, each, count), [StageTimes(1.0, 2.0)] * (ranks * each))
    assert found.step == 3.0 * (each * count + ranks - 1)
    assert found.bubble == pytest.approx((ranks - 1) / (each * count + ranks - 1))


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 5), st.integers(1, 3))
def test_every_rank_does_its_own_and_does_it_once(name: str, ranks: int, rounds: int) -> None:
    kind, count = SCHEDULES[name], ranks * rounds
    each = 2 if kind.several else 1
    for rank, actions in enumerate(order_of(name, ranks, each, count)):
        done = Counter(action for action in actions if action.what != "UNSHARD")
        halves = {action.stage: {other.what for other in done if other.stage == action.stage} for action in done}
        assert set(halves) == set(kind.stages_of(rank, ranks, each))
        for stage, whats in halves.items():
            assert whats == {"F", "B"} or whats == {"F", "I", "W"}
            assert all(done[Action(stage, what, number)] == 1 for what in whats for number in range(count))
        assert set(done.values()) == {1}


@given(st.integers(1, 5), st.integers(1, 4))
def test_gpipe_and_1f1b_are_in_the_order_that_torch_plans(ranks: int, rounds: int) -> None:
    """But for the last rank of 1F1B, where torch's plan starts with microbatch 1 and ends with one too many (torch 2.13)."""
    count = ranks * rounds
    for name, engine in (("gpipe", ScheduleGPipe), ("1f1b", Schedule1F1B)):
        theirs = get_schedule_ops(engine, ranks, count)
        texts = [[str(step) for step in actions if step is not None and step.is_compute_op] for actions in theirs]
        ours = [[str(action) for action in actions] for actions in order_of(name, ranks, 1, count)]
        least = len(ours) if name == "gpipe" else len(ours) - 1
        assert ours[:least] == texts[:least]
    assert ours[-1] == [text for number in range(count) for text in (f"{ranks - 1}F{number}", f"{ranks - 1}B{number}")]


def test_what_a_schedule_cannot_do_is_said() -> None:
    with pytest.raises(SpecError, match="interleaved_1f1b on 4 ranks with 9 microbatches"):
        order_of("interleaved_1f1b", 4, 2, 9)


@given(orders(), st.integers(1, 30), st.floats(0, 1))
def test_gradients_that_leave_early_are_there_no_later(
    case: tuple[Order, list[StageTimes]], reduced: int, share: float
) -> None:
    order, times = case
    none = played(order, times).step
    early = played(order, [replace(each, reduced=float(reduced), tail=share * reduced) for each in times])
    late = played(order, [replace(each, reduced=float(reduced), tail=float(reduced)) for each in times])
    assert max(none, reduced) <= early.step <= late.step <= none + reduced * len(times)
    assert early.span == none, "what copies send holds no rank up"


@given(orders(), st.integers(1, 30))
def test_parameters_are_there_before_the_first_forward(case: tuple[Order, list[StageTimes]], gathered: int) -> None:
    order, times = case
    found = played(order, [replace(each, gathered=float(gathered)) for each in times])
    least, stages = played(order, times).step, len(times)
    assert gathered + max(found.busy) <= found.step <= least + gathered * stages * max(1, len(order[0]))
    assert found.step > least


@given(st.integers(1, 6), st.integers(1, 4))
def test_memory_in_flight_is_what_papers_say(ranks: int, rounds: int) -> None:
    """GPipe keeps all microbatches; a stage of 1F1B as many as there are stages from it to the end."""
    count = ranks * rounds
    for name, kept in (("gpipe", [count] * ranks), ("1f1b", [ranks - rank for rank in range(ranks)])):
        assert [most_kept(actions, [1.0] * ranks) for actions in order_of(name, ranks, 1, count)] == kept


def test_ranks_that_wait_for_each_other_are_named() -> None:
    backwards_first = ((Action(0, "B", 0), Action(0, "F", 0)), (Action(1, "F", 0), Action(1, "B", 0)))
    with pytest.raises(AssertionError, match="0B0"):
        played(backwards_first, [StageTimes(1.0, 2.0)] * 2)
