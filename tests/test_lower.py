"""What each lowering promises, on random programs, and the whole of it against an oracle that knows none of them."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from oracle import judge

from partitioner.ir.access import Access
from partitioner.ir.assignment import Assignment
from partitioner.ir.conflicts import conflicts, issued_in_order
from partitioner.ir.graph import Op
from partitioner.ir.machine import Device, Machine
from partitioner.ir.order import happens_before
from partitioner.ir.program import Copy, Free, Program, Record, Run, Wait, inputs_of, outputs_of
from partitioner.ir.task import group
from partitioner.lower import LOWERINGS
from partitioner.lower.copies import insert_copies
from partitioner.lower.frees import insert_frees
from partitioner.lower.syncs import insert_syncs, prune_waits
from programs import Lowered, lowered_programs, make_graph, random_costs, scheduled


def stages(lowered: Lowered) -> list[Program]:
    """The program as scheduled, and after each lowering."""
    found = [scheduled(lowered.tasks, lowered.placement, lowered.costs)]
    for lowering in LOWERINGS:
        found.append(lowering(found[-1]))
    return found


def kinds(program: Program, *wanted: type) -> list[object]:
    return [item for item in program.instructions if isinstance(item, wanted)]


@given(lowered_programs())
def test_a_lowered_program_means_what_its_graph_means(lowered: Lowered) -> None:
    """The strongest test here: run on symbolic memory, in any timing that the events leave, it gives the graph's results."""
    assert judge(lowered.program, lowered.tasks) is None


def test_the_order_of_the_lowerings() -> None:
    """`insert_frees` adds no waits, so the waits must be final before it."""
    assert (insert_copies, insert_syncs, prune_waits, insert_frees) == LOWERINGS


@given(lowered_programs())
def test_a_value_is_copied_once_to_each_device_that_reads_it(lowered: Lowered) -> None:
    """And only where it is read, on the lane that reads it first, just before it does."""
    before, after, *_ = stages(lowered)
    copies = Counter((item.source, after.lanes[item.lane].torch_device) for item in kinds(after, Copy))
    assert set(copies.values()) <= {1}
    wanted = set()
    for run in kinds(before, Run):
        device = before.lanes[run.lane].torch_device
        wanted |= {(name, device) for name in run.reads if before.by_name[name].torch_device not in ("", device)}
    assert set(copies) == wanted
    for index, item in enumerate(after.instructions):
        if isinstance(item, Copy):
            reader = next(later for later in after.instructions[index:] if isinstance(later, Run))
            assert item.target in reader.reads and item.lane == reader.lane


@given(lowered_programs())
def test_copies_change_nothing_else(lowered: Lowered) -> None:
    """The same Runs on the same lanes; each reads the value that lies on its device."""
    before, after, *_ = stages(lowered)
    assert len(kinds(before, Run)) == len(kinds(after, Run))
    for old, new in zip(kinds(before, Run), kinds(after, Run), strict=True):
        assert (old.lane, old.task, old.writes) == (new.lane, new.task, new.writes)
        assert tuple(name.partition("@")[0] for name in new.reads) == old.reads
        device = after.lanes[new.lane].torch_device
        assert all(after.by_name[name].torch_device in ("", device) for name in (*new.reads, *new.writes))


@given(lowered_programs())
def test_syncs_order_every_conflict_and_move_nothing(lowered: Lowered) -> None:
    _, before, after, *_ = stages(lowered)
    assert kinds(after, Run, Copy) == list(before.instructions)
    order = happens_before(after)
    for one, other in conflicts(after):
        same = after.instructions[one].lane == after.instructions[other].lane
        assert same or order.before(one, other) or issued_in_order(after, one, other)


@given(lowered_programs())
def test_syncs_begin_and_end_on_lane_zero(lowered: Lowered) -> None:
    """The caller's work comes before the program on every lane, and the program's before whatever the caller does next."""
    after = stages(lowered)[2]
    order = happens_before(after)
    for index, item in enumerate(after.instructions):
        if isinstance(item, Run | Copy):
            assert item.lane == 0 or order.before(0, index)
            assert order.known_to(0, index)
    assert {item.lane for item in after.instructions} != {0} or not kinds(after, Record, Wait)


@given(lowered_programs())
def test_pruning_removes_only_waits_that_others_imply(lowered: Lowered) -> None:
    """Happens-before between all that is no event is what it was, and every event that is left has both its ends."""
    before, after = stages(lowered)[2:4]
    old = [index for index, item in enumerate(before.instructions) if not isinstance(item, Record | Wait)]
    new = [index for index, item in enumerate(after.instructions) if not isinstance(item, Record | Wait)]
    assert [before.instructions[index] for index in old] == [after.instructions[index] for index in new]
    was, now = happens_before(before), happens_before(after)
    places = range(len(old))
    assert all(was.before(old[a], old[b]) == now.before(new[a], new[b]) for a in places for b in places)
    assert {item.event for item in kinds(after, Record)} == {item.event for item in kinds(after, Wait)}
    numbers = sorted(item.event for item in kinds(after, Record))
    assert numbers == list(range(len(numbers))), "events are numbered from 0"


@given(lowered_programs())
def test_pruning_leaves_no_wait_that_orders_nothing(lowered: Lowered) -> None:
    """But for a lane's first: it waits for the caller's event 0, which backends know by its number."""
    program = stages(lowered)[3]
    items = program.instructions
    work = [index for index, item in enumerate(items) if not isinstance(item, Record | Wait)]
    ordered = happens_before(program)
    for at, wait in enumerate(items):
        if isinstance(wait, Wait) and wait.event:
            fewer = Program("P", program.lanes, (), (), (), (*items[:at], *items[at + 1 :]))
            without = happens_before(fewer)
            shift = {index: index - (index > at) for index in work}
            pairs = [(a, b) for a in work for b in work if ordered.before(a, b)]
            ends = [index for index in work if ordered.known_to(0, index)]
            same = all(without.before(shift[a], shift[b]) for a, b in pairs)
            assert not (same and all(without.known_to(0, shift[index]) for index in ends))


@given(lowered_programs())
def test_the_callers_event_is_number_zero(lowered: Lowered) -> None:
    """The streams backend skips event 0 on CPU lanes, for the caller's own data is there already."""
    items = lowered.program.instructions
    for lane in {item.lane for item in items} - {0}:
        assert next(item for item in items if item.lane == lane) == Wait(lane, 0)
        assert items[0] == Record(0, 0)


@given(lowered_programs())
def test_frees_add_no_waits(lowered: Lowered) -> None:
    """Memory is never worth holding a lane for: a value goes where it is known to be done with, or at the end."""
    before, after = stages(lowered)[3:5]
    assert [item for item in after.instructions if not isinstance(item, Free)] == list(before.instructions)
    assert after.values == before.values


@given(lowered_programs())
def test_each_value_is_freed_once_and_as_soon_as_its_lane_knows(lowered: Lowered) -> None:
    program = lowered.program
    freed = Counter(item.value for item in kinds(program, Free))
    kept = {*program.inputs, *program.outputs}
    assert freed == Counter(value.name for value in program.values if value.name not in kept)
    order = happens_before(program)
    for index, item in enumerate(program.instructions):
        if isinstance(item, Free):
            users = [n for n, other in enumerate(program.instructions) if item.value in (*inputs_of(other), *outputs_of(other))]
            assert all(order.before(user, index) for user in users)


@given(lowered_programs())
def test_lowering_is_a_function(lowered: Lowered) -> None:
    """The same program each time, so that plans can be compared: nothing depends on the order of a set."""
    assert stages(lowered)[-1] == lowered.program
    assert str(stages(lowered)[-1]) == str(lowered.program)


def test_one_lane_needs_no_events() -> None:
    ops = [Op("a", "f", ("x",), (Access("x"), Access("a", True)), ("a",))]
    ops += [Op("b", "f", ("a",), (Access("a"), Access("b", True)), ("b",))]
    graph = make_graph(ops, outputs=["b"])
    tasks = group(graph, [["a"], ["b"]])
    machine = Machine((Device("cpu", "cpu"),))
    placement = Assignment("test", ("t0", "t1"), (0, 0), (0, 1))
    program = scheduled(tasks, placement, random_costs(Random(0), graph, machine))
    for lowering in LOWERINGS:
        program = lowering(program)
    assert [str(item) for item in program.instructions] == [
        "0 run t0 (x) -> (a) w:a r:x",
        "0 run t1 (a) -> (b) r:a w:b",
        "0 free a",
    ]
