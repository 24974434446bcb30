"""Who conflicts, who uses a value, whose memory it is: small programs, and random ones pair by pair."""

from __future__ import annotations

import networkx as nx
from hypothesis import given

from partitioner.ir.access import ANY, Access, conflict
from partitioner.ir.conflicts import allocators, conflicts, free_lanes, issued_in_order, stale_uses, storage_users
from partitioner.ir.parse import parse
from partitioner.ir.program import Copy, Free, Program, Run, Value
from programs import Lowered, lowered_programs


def program(text: str) -> Program:
    return parse("program P\nlane 0 cuda0/0 cuda:0\nlane 1 cuda0/1 cuda:0\nlane 2 cpu/0 cpu\n" + text)


@given(lowered_programs())
def test_conflicts_imply_every_pair_that_conflicts(lowered: Lowered) -> None:
    """What `conflicts` leaves out must follow by going from pair to pair, or two instructions race unseen."""
    items = lowered.program.instructions
    working = [index for index, item in enumerate(items) if isinstance(item, Run | Copy)]
    accesses = {index: lowered.program.accesses(items[index]) for index in working}
    every = [(a, b) for a in working for b in working if a < b and conflict(accesses[a], accesses[b]) is not None]
    found = nx.DiGraph(conflicts(lowered.program))
    assert set(nx.transitive_closure(found).edges) >= set(every)
    assert all(items[a].lane >= 0 and a < b and {a, b} <= set(working) for a, b in found.edges)


@given(lowered_programs())
def test_users_and_makers(lowered: Lowered) -> None:
    """Users of a value are those of its storages, too: a view keeps its base alive. The maker wrote first."""
    items = lowered.program.instructions
    users, makers = storage_users(lowered.program), allocators(lowered.program)
    for value in lowered.program.values:
        names = {f"%{value.name}", *value.storages}
        touching = [n for n, item in enumerate(items) if names & {a.resource for a in lowered.program.accesses(item)}]
        assert users[value.name] == touching
        written = [item for item in items for a in lowered.program.accesses(item) if a.resource == value.name and a.write]
        if written:
            assert makers[value.name] == written[0].lane


def test_only_a_generator_on_accelerators_is_ordered_by_issue() -> None:
    """A kernel gets its random numbers from the host when it is issued; on a CPU lane the op itself draws them."""
    text = "0 run a () -> () w:rng r:s\n1 run b () -> () w:rng r:s\n2 run c () -> () w:rng\n1 run d () -> () w:rng w:s"
    drawn = program(text)
    assert issued_in_order(drawn, 0, 1)
    assert not issued_in_order(drawn, 0, 2), "a CPU lane"
    assert not issued_in_order(drawn, 0, 3), "a storage besides"
    unknown = program(f"0 run a () -> () w:rng w:{ANY}\n1 run b () -> () w:rng")
    assert not issued_in_order(unknown, 0, 1), "unknown effects"


def test_memory_belongs_to_the_lane_that_made_it() -> None:
    """The caching allocator gives a block back to the stream that it came from. A CPU's memory belongs to nobody."""
    text = "0 run a () -> (x) w:x\n1 run b () -> (y) w:y\n1 run c (x) -> (z) w:x w:z"
    values = {
        "x": Value("x", "cuda:0", 8, ("x",)),
        "either": Value("either", "cuda:0", 8, ("x", "y")),
        "foreign": Value("foreign", "cuda:0", 8, ("input",)),
        "host": Value("host", "cpu", 8, ("x",)),
        "number": Value("number", "", 0, ()),
    }
    made = program(text)
    lanes = {name: free_lanes(made, value, allocators(made)) for name, value in values.items()}
    assert lanes == {"x": [0], "either": [], "foreign": [], "host": [2], "number": [2]}


def test_a_number_is_freed_on_lane_zero_where_there_is_no_cpu_lane() -> None:
    alone = parse("program P\nlane 0 cuda0/0 cuda:0")
    assert free_lanes(alone, Value("number", "", 0, ()), {}) == [0]


STALE = """\
value x cuda:0 8 x
value x@cpu cpu 8 x@cpu
value v cpu 8 x@cpu
input x
2 copy x -> x@cpu
0 run write (x) -> () w:x
"""


def test_a_copy_is_stale_after_a_write_to_its_source() -> None:
    """A read of the copy, and a read of a view of it, both lack the write."""
    assert list(stale_uses(program(STALE + "2 run t (x@cpu) -> () r:x@cpu"))) == [(0, 1, 2)]
    assert list(stale_uses(program(STALE + "2 run t (v) -> () r:x@cpu"))) == [(0, 1, 2)]


def test_a_copy_after_the_write_is_fresh() -> None:
    text = STALE.splitlines()
    swapped = "\n".join([*text[:-2], text[-1], text[-2], "2 run t (x@cpu) -> () r:x@cpu"])
    assert list(stale_uses(program(swapped))) == []


def test_a_free_is_no_user() -> None:
    freed = program("value x cuda:0 8 x\n0 run t () -> (x) w:x\n0 free x")
    assert isinstance(freed.instructions[1], Free)
    assert storage_users(freed) == {"x": [0]}


def test_what_touches_nothing_conflicts_with_nothing() -> None:
    """Not with an op either of which nothing is known."""
    assert conflict([], [Access(ANY, write=True)]) is None
    assert conflict([Access(ANY, write=True)], []) is None
