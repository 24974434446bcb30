"""The simulator: drawings of small programs, and what must hold for any plan of any model."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given, settings

from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs, OpCost
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Device, Link, Machine
from partitioner.ir.parse import parse
from partitioner.ir.plan import Plan
from partitioner.ir.program import Program
from partitioner.ir.task import Task, TaskGraph
from partitioner.ir.timeline import Timeline
from partitioner.model.call import Call
from partitioner.planner.bounds import lower_bound
from partitioner.planner.seconds import serial_seconds
from partitioner.planner.simulate import op_seconds, simulate
from partitioner.plans import make_plan
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import Spec
from partitioner.testing import GeneratedModule, fake_device_lists, modules

MS = 1e-3


def costs_of(machine: Machine, **milliseconds: float) -> Costs:
    """Ops that take so long on one thread of a device of 1 GFLOP/s, and profit nearly fully from more threads."""
    flops = {name: round(time * MS * 1e9) for name, time in milliseconds.items()}
    return Costs(machine, {name: OpCost(count, 0, 0) for name, count in flops.items()}, shapes_known=True)


def tasks_of(costs: Costs) -> TaskGraph:
    """One task for each op, of the same name."""
    return TaskGraph(cast(Graph, None), tuple(Task(name, (name,)) for name in costs.ops))


def cpu(lanes: int, cores: int = 1) -> Machine:
    return Machine((Device("cpu", "cpu", lanes, flops=1e9, overhead=0.0, handoff=0.5 * MS, cores=cores),))


def program(*lines: str, machine: Machine) -> Program:
    lanes = [f"lane {number} {lane.name} {lane.torch_device}" for number, lane in enumerate(machine.lanes)]
    return parse("\n".join(["program Test", *lanes, *lines]))


def simulated(machine: Machine, *lines: str, **milliseconds: float) -> Timeline:
    costs = costs_of(machine, **milliseconds)
    return simulate(program(*lines, machine=machine), costs, tasks_of(costs))


def drawn(timeline: Timeline) -> list[tuple[int, str, float, float]]:
    """Lane, label, start and end in milliseconds."""
    return [(span.lane, span.label, round(span.start / MS, 3), round(span.end / MS, 3)) for span in timeline.spans]


def test_one_lane_runs_one_task_after_the_other() -> None:
    timeline = simulated(cpu(1), "0 run a () -> ()", "0 run b () -> ()", a=1, b=2)
    assert drawn(timeline) == [(0, "a", 0, 1), (0, "b", 1, 3)]
    assert timeline.lanes == ("cpu/0",)


FORK = (
    "0 record e0",
    "0 run a () -> ()",
    "1 wait e0",
    "1 run b () -> ()",
    "1 record e1",
    "0 wait e1",
    "0 run c () -> ()",
)


def test_a_waiting_lane_pays_a_handoff() -> None:
    #  cpu/0   | a |                    | c |     b ends at 2.5, and lane 0 hears of it 0.5 later
    #  cpu/1     . |       b        |
    timeline = simulated(cpu(2), *FORK, a=1, b=2, c=1)
    assert drawn(timeline) == [(0, "a", 0, 1), (1, "b", 0.5, 2.5), (0, "c", 3, 4)]


def test_a_lane_that_has_long_been_busy_pays_none() -> None:
    #  cpu/0   |          a           | c |
    #  cpu/1     . |  b  |
    timeline = simulated(cpu(2), *FORK, a=4, b=1, c=1)
    assert drawn(timeline) == [(0, "a", 0, 4), (1, "b", 0.5, 1.5), (0, "c", 4, 5)]


def test_a_lane_that_waits_for_itself_pays_none() -> None:
    timeline = simulated(cpu(1), "0 run a () -> ()", "0 record e0", "0 wait e0", "0 run b () -> ()", a=1, b=1)
    assert timeline.makespan == pytest.approx(2 * MS)


def test_the_callers_wait_at_the_end_counts() -> None:
    timeline = simulated(cpu(2), *FORK[:-1], a=1, b=2)
    assert drawn(timeline)[-1] == (0, "return", 3, 3)
    assert timeline.busy(0) == pytest.approx(1 * MS)


def test_a_lane_that_is_alone_uses_every_core() -> None:
    machine = cpu(2, cores=2)
    costs, wide = costs_of(machine, a=4), Assignment("test", ("a",), (0,), (0,), threads=(2,))
    alone = simulate(program("0 run a () -> ()", machine=machine), costs, tasks_of(costs), wide)
    shared = simulated(cpu(2, cores=2), *FORK, a=4, b=4, c=0)
    assert alone.makespan == pytest.approx(2 * MS, rel=1e-4)
    assert shared.spans[0].end == pytest.approx(4 * MS)


def test_a_copy_takes_latency_and_bandwidth() -> None:
    gpus = [
        Device(name, place, flops=1e9, overhead=0.0, handoff=0.5 * MS) for name, place in (("g0", "cuda:0"), ("g1", "cuda:1"))
    ]
    machine = Machine(tuple(gpus), (Link("g0", "g1", bandwidth=1e9, latency=0.25 * MS),))
    values = ("value x cuda:0 1000000 x", "value x@cuda:1 cuda:1 1000000 x@cuda:1")
    items = ("0 run a () -> (x)", "0 record e0", "1 wait e0", "1 copy x -> x@cuda:1", "1 run b (x@cuda:1) -> ()")
    #  g0/0   | a |
    #  g1/0        .  | x@cuda:1 | b |     hand-off 0.5, latency 0.25, 1 MB at 1 GB/s: 1
    timeline = simulated(machine, *values, *items, a=1, b=1)
    assert drawn(timeline) == [(0, "a", 0, 1), (1, "x@cuda:1", 1.5, 2.75), (1, "b", 2.75, 3.75)]


def test_an_event_that_is_never_recorded_holds_nobody() -> None:
    assert simulated(cpu(2), "1 wait e7", "1 run a () -> ()", a=1).spans[0].start == 0


def test_a_program_without_instructions_takes_no_time() -> None:
    assert simulated(cpu(2)).makespan == 0


def planned(model: GeneratedModule, devices: list[str]) -> Plan:
    spec = Spec()
    return make_plan(model, Call.of(model.example_inputs(0), {}), build_machine(spec, devices), spec)


@given(modules(), fake_device_lists())
@settings(max_examples=settings.default.max_examples // 2)
def test_any_plan(model: GeneratedModule, devices: list[str]) -> None:
    plan = planned(model, devices)
    timeline = simulate(plan.program, plan.costs, plan.tasks, plan.placement)
    spans = {span.label: span for span in timeline.spans}
    assert sorted(name for name in spans if name in plan.tasks.by_name) == sorted(plan.tasks.by_name)
    for lane in range(len(timeline.lanes)):
        own = [span for span in timeline.spans if span.lane == lane]
        assert all(one.end <= other.start for one, other in pairwise(own)), "a lane is a FIFO"
    for before, after in plan.tasks.edges:
        if (before, after) not in plan.tasks.random_only:
            assert spans[before].end <= spans[after].start, f"{after} waits for {before}"
    assert op_seconds(plan.program, plan.costs, plan.tasks).keys() == plan.graph.by_name.keys()
    assert timeline.makespan >= lower_bound(plan.graph, plan.costs).seconds * (1 - 1e-9)


@given(modules())
@settings(max_examples=settings.default.max_examples // 2)
def test_one_lane_takes_the_serial_time(model: GeneratedModule) -> None:
    plan = planned(model, ["cpu:0"])
    serial = serial_seconds(plan.costs, plan.machine.devices[0])
    assert simulate(plan.program, plan.costs, plan.tasks, plan.placement).makespan == pytest.approx(serial)
