"""The total order of issue: every edge kept, every task once, and lanes fed in an order that keeps them busy."""

from __future__ import annotations

from random import Random

from hypothesis import given

from partitioner.ir.program import Program, Run
from partitioner.planner.constraints import constrain
from partitioner.planner.policies.by_level import ByLevel
from programs import (
    Lowered,
    lowered_programs,
    place,
    random_costs,
    random_graph,
    random_machine,
    random_tasks,
    scheduled,
)


def runs_of(lowered: Lowered) -> Program:
    return scheduled(lowered.tasks, lowered.placement, lowered.costs)


@given(lowered_programs())
def test_issue_order_respects_every_edge(lowered: Lowered) -> None:
    """Data, hazard and random edges alike: on an accelerator issue order is all that orders random ops."""
    order = [item.task for item in runs_of(lowered).instructions if isinstance(item, Run)]
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
            meta = lowered.graph.metas[value.name]
            assert (value.bytes, value.storages) == (0 if meta is None else meta.bytes, (value.name,))


def test_the_same_order_each_time() -> None:
    rng = Random(3)
    graph = random_graph(rng)
    machine = random_machine(rng)
    costs = random_costs(rng, graph, machine)
    constraints = constrain(graph, [], [], {}, {})
    tasks = random_tasks(rng, graph, costs, constraints)
    assert len({str(scheduled(tasks, place(ByLevel(), tasks, costs, machine, constraints), costs)) for _ in range(3)}) == 1
