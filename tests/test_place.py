"""Policies: every one keeps to pins, groups and memory, and `by_level` balances branches and knows when not to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import PlacementError
from partitioner.ir.access import Access
from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs, OpCost
from partitioner.ir.graph import Graph, Op
from partitioner.ir.machine import Device, Machine
from partitioner.ir.task import TaskGraph, group
from partitioner.planner.constraints import Constraints, constrain
from partitioner.planner.policies import MIN_SPEEDUP, Policy, decided, policy_of
from partitioner.planner.pose import pose
from partitioner.planner.simulate import simulate
from programs import (
    lower,
    make_graph,
    random_constraints,
    random_costs,
    random_graph,
    random_machine,
    random_tasks,
    scattered,
    scheduled,
)

EVERY_POLICY = ("by_level", "single", "scattered")


def policy_named(name: str, rng: Random) -> Policy:
    return scattered(rng) if name == "scattered" else policy_of(name)


def op(name: str, *inputs: str, state: tuple[str, ...] = ()) -> Op:
    accesses = (*(Access(value) for value in inputs), Access(name, True))
    return Op(name, "f", inputs, accesses, (name,), state)


def singletons(graph: Graph) -> TaskGraph:
    return group(graph, [[known.name] for known in graph.ops])


def seconds(graph: Graph, machine: Machine, state: int = 0, **times: int) -> Costs:
    """Each op takes the seconds given, or one, on devices of 1 FLOP/s."""
    return Costs(machine, {known.name: OpCost(times.get(known.name, 1), 0, state) for known in graph.ops}, True)


def lanes_of(count: int, handoff: float = 0.0) -> Machine:
    return Machine((Device("cpu", "cpu", count, flops=1.0, overhead=0.0, handoff=handoff),))


def place(
    policy: str, graph: Graph, costs: Costs, pins: tuple[tuple[str, str], ...] = (), colocate: tuple[list[str], ...] = ()
) -> Assignment:
    constraints = constrain(graph, pins, colocate, {}, {})
    return decided(pose(singletons(graph), costs, costs.machine, constraints), policy_of(policy))


def fork(branches: int) -> Graph:
    """
            a
         /  |  \\
        b0  b1  ...
         \\  |  /
          join
    """
    middle = [op(f"b{number}", "a") for number in range(branches)]
    return make_graph([op("a", "x"), *middle, op("join", *(branch.name for branch in middle))], outputs=["join"])


@pytest.mark.parametrize("policy", EVERY_POLICY)
@given(rng=st.randoms(use_true_random=False))
def test_every_policy_keeps_to_pins_and_groups(policy: str, rng: Random) -> None:
    """A parameter lies in one place, and a copy taken before a write would lack it. So these are no preferences."""
    graph, machine = random_graph(rng), random_machine(rng)
    costs, constraints = random_costs(rng, graph, machine), random_constraints(rng, graph, machine)
    tasks = random_tasks(rng, graph, costs, constraints)
    placement = decided(pose(tasks, costs, machine, constraints), policy_named(policy, rng))
    assert list(placement.lane) == list(placement.reason) == [task.name for task in tasks.tasks]
    assert sorted(placement.order) == list(range(len(tasks.tasks)))
    devices = defaultdict(set)
    for known in graph.ops:
        device = machine.lanes[placement.lane[tasks.task_of[known.name]]].device_name
        devices[constraints.group[known.name]].add(device)
        assert constraints.pinned(known.name) in (None, device)
    assert all(len(found) == 1 for found in devices.values())


@pytest.mark.parametrize("policy", EVERY_POLICY)
@given(rng=st.randoms(use_true_random=False))
def test_every_policy_keeps_to_memory(policy: str, rng: Random) -> None:
    """State that is placed fits, or the error says what did not, and what each device holds."""
    layers = [op(f"l{n}", *([f"l{rng.randrange(n)}"] if n else ["x"]), state=(f"w{n}",)) for n in range(6)]
    graph = make_graph(layers, outputs=["l5"])
    caps = [rng.randint(0, 30), rng.randint(0, 30), None][: rng.randint(2, 3)]
    machine = Machine(tuple(Device(f"d{n}", f"cuda:{n}", memory=cap) for n, cap in enumerate(caps)))
    costs = Costs(machine, {layer.name: OpCost(1, 1, rng.randint(1, 10)) for layer in layers}, True)
    constraints = constrain(graph, [], [], {}, {})
    tasks = singletons(graph)
    try:
        placement = decided(pose(tasks, costs, machine, constraints), policy_named(policy, rng))
    except PlacementError as error:
        assert all(text in str(error) for text in ("parameters and buffers", " B", "Raise a memory cap"))
        assert None not in caps
        return
    used: defaultdict[int, int] = defaultdict(int)
    for task in tasks.tasks:
        used[placement.lane[task.name]] += costs.ops[task.ops[0]].state
    assert all(cap is None or used[lane] <= cap for lane, cap in enumerate(caps))


def test_single_is_one_lane_in_program_order() -> None:
    """The baseline that every comparison is with: what eager does."""
    graph = fork(3)
    placement = place("single", graph, seconds(graph, lanes_of(4)))
    assert set(placement.lane.values()) == {0}
    program = scheduled(singletons(graph), placement, seconds(graph, lanes_of(4)))
    assert [item.task for item in program.instructions] == ["t0", "t1", "t2", "t3", "t4"]


def test_single_goes_on_where_there_is_room() -> None:
    """A model that is larger than the first device runs on two, one after the other."""
    machine = Machine((Device("a", "cuda:0", memory=8), Device("b", "cuda:1")))
    graph = make_graph([op(f"l{n}", f"l{n - 1}" if n else "x", state=(f"w{n}",)) for n in range(4)], outputs=["l3"])
    assert list(place("single", graph, seconds(graph, machine, state=4)).lane.values()) == [0, 0, 1, 1]


def test_equal_branches_get_a_lane_each() -> None:
    graph = fork(3)
    placement = place("by_level", graph, seconds(graph, lanes_of(3), b0=5, b1=5, b2=5))
    assert sorted(placement.lane[name] for name in ("t1", "t2", "t3")) == [0, 1, 2]
    assert placement.reason["t0"] == "ends first on lane 0 of 3"


def test_unequal_branches_are_balanced_longest_first() -> None:
    """4 + 2 against 3 + 3, and not 4 + 3 against 3 + 2."""
    graph = fork(4)
    placement = place("by_level", graph, seconds(graph, lanes_of(2), b0=2, b1=3, b2=3, b3=4))
    lanes = [placement.lane[f"t{number}"] for number in (1, 2, 3, 4)]
    assert lanes[3] == lanes[0] != lanes[1] == lanes[2]


def test_a_chain_stays_on_its_lane() -> None:
    """Two chains side by side: each op is where its input is, so nothing is handed over but the ends."""
    left = [op(f"l{n}", f"l{n - 1}" if n else "x") for n in range(4)]
    right = [op(f"r{n}", f"r{n - 1}" if n else "x") for n in range(4)]
    graph = make_graph([*left, *right, op("join", "l3", "r3")], outputs=["join"])
    tasks = singletons(graph)
    placement = place("by_level", graph, seconds(graph, lanes_of(2, handoff=0.5)))
    lanes = {name: placement.lane[tasks.task_of[name]] for name in tasks.task_of}
    assert len({lanes[f"l{n}"] for n in range(4)}) == len({lanes[f"r{n}"] for n in range(4)}) == 1
    assert lanes["l0"] != lanes["r0"]
    assert placement.reason[tasks.task_of["l2"]] == "stays on its predecessor's lane"


def test_a_pin_leaves_one_lane_and_the_reason_says_so() -> None:
    machine = Machine((Device("a", "cuda:0", flops=1.0), Device("b", "cuda:1", flops=1.0)))
    graph = fork(2)
    placement = place("by_level", graph, seconds(graph, machine, b0=9, b1=9), pins=(("b1", "b"),))
    assert placement.lane["t2"] == 1
    assert placement.reason["t2"] == "the only lane that may have it"


def test_branches_shorter_than_a_hand_off_stay_where_they_are() -> None:
    graph = fork(2)
    placement = place("by_level", graph, seconds(graph, lanes_of(2, handoff=10.0)))
    assert set(placement.lane.values()) == {0}


def test_the_gate_falls_back_to_one_lane_with_its_reason() -> None:
    """Two lanes end each branch a little sooner, at 2.98 s and not at 3 s, and the join a second later: 4.96 s and not 4 s.

    lane 0   | a | b0 | . . . . |join|
    lane 1         .  | b1 | .
    """
    graph = fork(2)
    placement = place("by_level", graph, seconds(graph, lanes_of(2, handoff=0.98)))
    assert set(placement.lane.values()) == {0}
    assert set(placement.reason.values()) == {
        f"serial, because lanes were predicted to give 0.81x and {MIN_SPEEDUP:.2f}x is the least that counts"
    }


def test_a_gain_within_the_error_of_the_estimate_does_not_count() -> None:
    """100 s on one lane or 98 s on two: the second is less than a factor of MIN_SPEEDUP better."""
    graph = make_graph([op("long", "x"), op("short", "x")], outputs=["long", "short"])
    placement = place("by_level", graph, seconds(graph, lanes_of(2), long=98, short=2))
    assert MIN_SPEEDUP > 100 / 98
    assert set(placement.lane.values()) == {0}
    better = place("by_level", graph, seconds(graph, lanes_of(2), long=90, short=10))
    assert set(better.lane.values()) == {0, 1}


def optimum(dag: nx.DiGraph[str], times: Mapping[str, float], lanes: int) -> float:
    """The shortest makespan of all schedules, by trying every order on every lane."""
    best = sum(times.values())

    def extend(done: dict[str, float], free: list[float]) -> None:
        nonlocal best
        if len(done) == len(times):
            best = min(best, max(done.values()))
        if max(free) >= best:
            return
        for name in times:
            if name not in done and all(before in done for before in dag.predecessors(name)):
                ready = max((done[before] for before in dag.predecessors(name)), default=0.0)
                for lane in {start: number for number, start in enumerate(free)}.values():
                    end = max(ready, free[lane]) + times[name]
                    extend({**done, name: end}, [*free[:lane], end, *free[lane + 1 :]])

    extend({}, [0.0] * lanes)
    return best


@given(st.randoms(use_true_random=False))
def test_by_level_is_within_grahams_bound_of_the_best_plan(rng: Random) -> None:
    """With hand-offs free, list scheduling takes at most 2 - 1/m times what the best of all schedules takes on m lanes.

    Source: Graham, "Bounds on multiprocessing timing anomalies", 1969.
    """
    graph = random_graph(rng, 6, ["compute", "compute", "factory"])
    machine = lanes_of(rng.choice((2, 3)))
    costs = Costs(machine, {known.name: OpCost(rng.choice((1, 1, 2, 5, 9)), 0, 0) for known in graph.ops}, True)
    tasks = singletons(graph)
    placement = place("by_level", graph, costs)
    makespan = simulate(lower(scheduled(tasks, placement, costs)), costs, tasks, placement).makespan
    assert placement.cost == pytest.approx(makespan), "what is promised is what the simulator finds"
    dag = nx.DiGraph(list(tasks.edges))
    dag.add_nodes_from(tasks.by_name)
    best = optimum(dag, {task.name: costs.time(task.ops, machine.devices[0]) for task in tasks.tasks}, len(machine.lanes))
    assert best <= makespan + 1e-9
    assert makespan <= best * (2 - 1 / len(machine.lanes)) * MIN_SPEEDUP


def test_a_group_is_reserved_as_a_whole() -> None:
    """``l0`` and ``l2`` share a device. If room for ``l2`` were not kept, ``l1`` would take it and ``l2`` find none."""
    machine = Machine((Device("a", "cuda:0", memory=8), Device("b", "cuda:1", memory=4)))
    graph = make_graph([op(f"l{n}", f"l{n - 1}" if n else "x", state=(f"w{n}",)) for n in range(3)], outputs=["l2"])
    for policy in ("by_level", "single"):
        placement = place(policy, graph, seconds(graph, machine, state=4), colocate=(["l0", "l2"],))
        assert [placement.lane[f"t{n}"] for n in range(3)] == [0, 1, 0]


def test_ops_of_one_task_pinned_apart_are_refused() -> None:
    """`coarsen` never makes such a task; a grouping from elsewhere might."""
    machine = Machine((Device("a", "cuda:0"), Device("b", "cuda:1")))
    graph = make_graph([op("one", "x"), op("two", "one")], outputs=["two"])
    constraints: Constraints = constrain(graph, [("one", "a"), ("two", "b")], [], {}, {})
    with pytest.raises(PlacementError, match=r"t0 .* is pinned to b and to a"):
        pose(group(graph, [["one", "two"]]), seconds(graph, machine), machine, constraints)
