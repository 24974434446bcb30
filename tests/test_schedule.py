"""The total order of issue: every edge kept, every task once, and lanes fed in an order that keeps them busy."""

from __future__ import annotations

from hypothesis import given

from partitioner.ir.access import Access
from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs, OpCost
from partitioner.ir.graph import Op
from partitioner.ir.machine import Device, Machine
from partitioner.ir.program import Program, Run
from partitioner.ir.task import TaskGraph, group
from partitioner.planner.constraints import constrain
from partitioner.planner.policies import POLICIES
from partitioner.planner.timing import issue_order
from programs import Lowered, lowered_programs, make_graph, scheduled


def runs_of(lowered: Lowered) -> Program:
    return scheduled(lowered.tasks, lowered.placement, lowered.costs)


@given(lowered_programs())
def test_issue_order_respects_every_edge(lowered: Lowered) -> None:
    """Data, hazard and random edges alike: on an accelerator issue order is all that orders random ops."""
    order = issue_order(lowered.tasks, lowered.placement, lowered.costs)
    position = {name: number for number, name in enumerate(order)}
    assert sorted(order) == sorted(task.name for task in lowered.tasks.tasks)
    assert all(position[before] < position[after] for before, after in lowered.tasks.edges)


@given(lowered_programs())
def test_a_scheduled_program_is_the_tasks_where_they_were_placed(lowered: Lowered) -> None:
    program = runs_of(lowered)
    assert program.inputs == tuple(name for name, _ in lowered.graph.inputs)
    assert program.outputs == lowered.graph.outputs
    for run in program.instructions:
        assert isinstance(run, Run)
        task = lowered.tasks.by_name[run.task]
        assert (run.reads, run.writes, run.touches) == (task.inputs, task.outputs, task.accesses)
        assert run.lane == lowered.placement.lane[run.task]


@given(lowered_programs())
def test_every_value_lies_where_it_is_made(lowered: Lowered) -> None:
    """What is no tensor lies nowhere. An input lies where it is read first, so that it is moved once at most."""
    program, lanes = runs_of(lowered), lowered.machine.lanes
    made = {name: run for run in program.instructions if isinstance(run, Run) for name in run.writes}
    readers = {name: run for run in reversed(program.instructions) if isinstance(run, Run) for name in run.reads}
    assert [value.name for value in program.values] == [*program.inputs, *made]
    for value in program.values:
        if value.name in made:
            known = lowered.graph.by_name[value.name]
            assert value.torch_device == (lanes[made[value.name].lane].torch_device if known.tensor else "")
            assert (value.bytes, value.storages) == (known.bytes, known.storages)
        else:
            assert value.torch_device == lanes[readers[value.name].lane if value.name in readers else 0].torch_device


def fork(costs: dict[str, int], lanes: int) -> tuple[TaskGraph, Costs, Machine]:
    """One op ``a`` that ``b``, ``c`` and ``d`` follow."""
    ops = [Op("a", "f", (), (Access("a", True),), ("a",))]
    ops += [Op(name, "f", ("a",), (Access("a"), Access(name, True)), (name,)) for name in "bcd"]
    graph = make_graph(ops, outputs=["b", "c", "d"])
    machine = Machine((Device("cpu", "cpu", lanes, flops=1.0, overhead=0.0, handoff=0.0),))
    known = {op.name: OpCost(costs.get(op.name, 1), 0, 0) for op in ops}
    return group(graph, [[op.name] for op in ops]), Costs(machine, known, True), machine


def test_of_those_that_could_start_the_highest_rank_goes_first() -> None:
    """So what the rest of the program waits for longest is not held up."""
    tasks, costs, _ = fork({}, 1)
    placement = Assignment("test", dict.fromkeys(("t0", "t1", "t2", "t3"), 0), {"t0": 0, "t1": 1, "t2": 3, "t3": 2}, {})
    assert issue_order(tasks, placement, costs) == ["t0", "t2", "t3", "t1"]


def test_equal_ranks_keep_program_order() -> None:
    tasks, costs, _ = fork({}, 1)
    placement = Assignment("test", dict.fromkeys(tasks.by_name, 0), dict.fromkeys(tasks.by_name, 0.0), {})
    assert issue_order(tasks, placement, costs) == ["t0", "t1", "t2", "t3"]


def test_a_lane_that_is_free_is_fed_first() -> None:
    """One host issues for every lane. Issuing all of lane 0 first would leave lane 1 idle meanwhile.

    lane 0   | a | b: 5 s      | c |       issued: a b d c
    lane 1       | d: 5 s      |
    """
    tasks, costs, _ = fork({"b": 5, "d": 5}, 2)
    rank = {"t0": 9.0, "t1": 5.0, "t2": 4.0, "t3": 1.0}
    placement = Assignment("test", {"t0": 0, "t1": 0, "t2": 0, "t3": 1}, rank, {})
    assert issue_order(tasks, placement, costs) == ["t0", "t1", "t3", "t2"]


def test_the_same_order_each_time() -> None:
    tasks, costs, machine = fork({"b": 5}, 2)
    constraints = constrain(tasks.graph, [], [], {}, {})
    placement = POLICIES["by_level"](tasks, costs, machine, constraints)
    assert len({str(scheduled(tasks, placement, costs)) for _ in range(3)}) == 1
