"""Happens-before by vector clocks, against the plain closure of its definition.

The closure (`oracle.closure`) joins sets of instructions along lanes and from Records to Waits. It is slow, and it has no
clock to get wrong.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from oracle import closure

from partitioner.ir.order import happens_before, idle_waits
from partitioner.ir.program import Free, Instruction, Program, Record, Wait
from programs import Lowered, lanes, lowered_programs

LANES, EVENTS = st.integers(0, 2), st.integers(0, 3)
ITEMS: st.SearchStrategy[Instruction] = st.one_of(
    st.builds(Record, LANES, EVENTS), st.builds(Wait, LANES, EVENTS), st.builds(Free, LANES, st.just("x"))
)
# Not only right programs: waits before their record, events recorded twice, lanes that wait for themselves.
ANYTHING = st.lists(ITEMS, max_size=14).map(lambda items: Program("P", lanes("cpu", "cpu", "cpu"), (), (), (), tuple(items)))


def assert_same(program: Program) -> None:
    order, past = happens_before(program), closure(program)
    indices = range(len(program.instructions))
    for first in indices:
        assert {second for second in indices if order.before(first, second)} == {s for s in indices if first in past[s]}
    for lane in range(len(program.lanes)):
        mine = [index for index in indices if program.instructions[index].lane == lane]
        known = set().union(*(past[index] | {index} for index in mine))
        assert {first for first in indices if order.known_to(lane, first)} == known


@given(ANYTHING)
def test_clocks_are_the_closure_for_any_events(program: Program) -> None:
    assert_same(program)


@given(lowered_programs())
def test_clocks_are_the_closure_for_lowered_programs(lowered: Lowered) -> None:
    assert_same(lowered.program)


@given(ANYTHING)
def test_happens_before_is_within_issue_order(program: Program) -> None:
    """So a lane never waits for what is issued later, and one pass in issue order is enough for everybody who asks."""
    order = happens_before(program)
    indices = range(len(program.instructions))
    assert all(first < second for first in indices for second in indices if order.before(first, second))


def test_the_drawing_in_the_docstring() -> None:
    """
    lane 0   run a . record e0 . run b            clock of run c: lane 0 -> 2, lane 1 -> 1
    lane 1             wait e0 . run c
    """
    a, b, c = Free(0, "a"), Free(0, "b"), Free(1, "c")
    program = Program("P", lanes("cpu", "cpu"), (), (), (), (a, Record(0, 0), b, Wait(1, 0), c))
    order = happens_before(program)
    assert order.clocks[4] == (2, 1)
    assert order.before(0, 4) and not order.before(2, 4) and not order.before(4, 2)
    assert order.final == ((3, 0), (2, 2))


@given(ANYTHING)
def test_idle_waits_order_nothing(program: Program) -> None:
    """Without them, work is ordered as it was. When pruning had clocks of its own, an event recorded twice told them apart."""
    idle = idle_waits(program)
    kept = [index for index in range(len(program.instructions)) if index not in idle]
    order, pruned = (
        happens_before(program),
        happens_before(replace(program, instructions=tuple(program.instructions[index] for index in kept))),
    )
    work = [(now, index) for now, index in enumerate(kept) if isinstance(program.instructions[index], Free)]
    for one, first in work:
        assert all(pruned.before(one, other) == order.before(first, second) for other, second in work)
