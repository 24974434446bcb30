"""Random graphs, machines, placements and lowered programs, made without tracing any model.

A graph is made op by op. Each op is of one kind below, and touches what the front ends would say that it touches: the
storages of its inputs, its own new storage, state, the random generator, or everything.

    compute   new storage from its inputs           in_place  writes the storages of its first input
    view      shares its input's storages           update    writes a buffer of the model
    maybe     shares them or makes a new one        unknown   conflicts with everything, writes all that it can reach
    size      no tensor                             factory   no inputs

Everything is drawn from a `random.Random`, so that hypothesis (`st.randoms`) and plain seeds drive one and the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from partitioner.errors import PlacementError
from partitioner.ir.access import ANY, RNG, Access
from partitioner.ir.assignment import Assignment
from partitioner.ir.cost import Costs, OpCost
from partitioner.ir.graph import Graph, Op, TensorMeta, Work
from partitioner.ir.machine import Device, Lane, Link, Machine
from partitioner.ir.problem import Problem
from partitioner.ir.program import Program
from partitioner.ir.task import TaskGraph, group
from partitioner.lower import LOWERINGS
from partitioner.lower.runs import schedule
from partitioner.model.call import Call
from partitioner.planner.assigned import scheduled as answered
from partitioner.planner.coarsen import coarsen
from partitioner.planner.constraints import Constraints, constrain
from partitioner.planner.feasible import Feasible
from partitioner.planner.policies import POLICIES, Policy, decided
from partitioner.planner.pose import pose
from partitioner.plans import make_plan
from partitioner.spec.spec import Spec

KINDS = "compute compute compute compute compute view maybe in_place in_place update random size load factory unknown".split()
STATE = ("w0", "w1", "b0", "b1")


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program, and everything that it was made from."""

    graph: Graph
    machine: Machine
    costs: Costs
    constraints: Constraints
    tasks: TaskGraph
    placement: Assignment
    program: Program

    def __repr__(self) -> str:
        return "\n\n".join(map(str, (self.graph, self.machine, self.tasks, self.placement, self.program)))


def make_graph(ops: Sequence[Op], inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ()) -> Graph:
    """A graph of given ops, without a traced program behind it."""
    metas = tuple((name, TensorMeta((16,), torch.float32, 64)) for name in inputs)
    return Graph("Toy", tuple(ops), metas, tuple(outputs), torch.fx.Graph(), tuple(inputs), observed=True)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def traced(module: nn.Module, *inputs: Any) -> Graph:
    """The graph of a whole model, on the CPU."""
    machine = Machine((Device("cpu", "cpu"),))
    return make_plan(module, Call.of(inputs, {}), machine, Spec()).graph


class _GraphMaker:
    def __init__(self, rng: Random, inputs: Sequence[str]) -> None:
        self.rng, self.ops = rng, list[Op]()
        self.storages: dict[str, tuple[str, ...]] = {name: (name,) for name in inputs}

    def add(self, kind: str) -> None:
        name = f"op{len(self.ops)}"
        wanted = {"factory": 0, "load": 0, "view": 1, "size": 1}.get(kind, self.rng.randint(1, 3))
        recent = list(self.storages)[-6:]
        inputs = tuple(dict.fromkeys(self.rng.choice(recent) for _ in range(wanted)))
        reached = tuple(dict.fromkeys(storage for value in inputs for storage in self.storages[value]))
        modes = dict.fromkeys(reached, False)
        storages, state = self._effect(kind, name, inputs, reached, modes)
        if name in storages:
            modes[name] = True
        for used in state:
            modes.setdefault(f"self.{used}", False)
        accesses = tuple(Access(resource, write) for resource, write in sorted(modes.items()))
        self.storages[name] = storages
        metas = (TensorMeta((16,), torch.float32, 4 * self.rng.randint(1, 64)),) if kind != "size" else ()
        self.ops.append(Op(name, kind, inputs, accesses, storages, state, outputs=metas, tensor=kind != "size", work=Work()))

    def _effect(
        self, kind: str, name: str, inputs: tuple[str, ...], reached: tuple[str, ...], modes: dict[str, bool]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The storages of the result, and the state used. Notes in ``modes`` what is written."""
        state = (self.rng.choice(STATE[:2]),) if kind == "compute" and self.rng.random() < 0.3 else ()
        match kind:
            case "view":
                return reached or (name,), ()
            case "maybe":
                return (*reached, name), ()
            case "in_place":
                modes |= dict.fromkeys(self.storages[inputs[0]], True)
                return self.storages[inputs[0]] or (name,), ()
            case "update":
                state = (self.rng.choice(STATE[2:]),)
                modes[f"self.{state[0]}"] = True
            case "random":
                modes[RNG] = True
            case "size":
                return (), ()
            case "load":
                state = (self.rng.choice(STATE),)
                return (f"self.{state[0]}",), state
            case "unknown":
                modes |= {**dict.fromkeys(reached, True), ANY: True}
                return (*reached, name), ()
        return (name,), state


def random_graph(rng: Random, most_ops: int = 12, kinds: Sequence[str] = KINDS) -> Graph:
    """A graph of one to ``most_ops`` ops."""
    inputs = [f"x{number}" for number in range(rng.randint(1, 3))]
    maker = _GraphMaker(rng, inputs)
    for _ in range(rng.randint(1, most_ops)):
        maker.add(rng.choice(kinds))
    names = [op.name for op in maker.ops]
    outputs = dict.fromkeys([names[-1], *rng.sample([*names, *inputs], min(len(names), rng.randint(0, 2)))])
    return make_graph(maker.ops, inputs, list(outputs))


LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("cpu",),
    ("cuda:0",),
    ("cuda:0", "cuda:1"),
    ("cuda:0", "cpu"),
    ("cpu", "cuda:0"),
    ("cuda:0", "cuda:1", "cpu"),
)


def random_machine(rng: Random, layouts: Sequence[tuple[str, ...]] = LAYOUTS, most_lanes: int = 4) -> Machine:
    """One to three devices, with one to ``most_lanes`` lanes between them."""
    torch_devices = rng.choice(layouts)
    lanes = [1] * len(torch_devices)
    for _ in range(rng.randint(0, most_lanes - len(lanes))):
        lanes[rng.randrange(len(lanes))] += 1
    devices = tuple(
        Device(name.replace(":", ""), name, count, handoff=rng.choice((0.0, 5e-5)), cores=rng.randint(1, 4))
        for name, count in zip(torch_devices, lanes, strict=True)
    )
    links = (Link(devices[0].name, devices[-1].name, 1e9, 1e-5),) if len(devices) > 1 else ()
    return Machine(devices, links)


def random_costs(rng: Random, graph: Graph, machine: Machine) -> Costs:
    """Costs from nothing to a few milliseconds an op; state has its size in the first op that uses it."""
    sized: set[str] = set()

    def of(op: Op) -> OpCost:
        new = set(op.state) - sized
        sized.update(new)
        return OpCost(rng.choice((0, 10**5, 10**7, 10**8)), rng.randint(0, 10**6), 1000 * len(new))

    return Costs(machine, {op.name: of(op) for op in graph.ops}, True)


def random_constraints(rng: Random, graph: Graph, machine: Machine) -> Constraints:
    """What the graph demands, with a pin or a colocation where those do not contradict it."""
    names = [op.name for op in graph.ops]
    pins = [(rng.choice(names), rng.choice(machine.devices).name) for _ in range(rng.choice((0, 0, 1, 3)))]
    colocate = [[rng.choice(names), rng.choice(names)]] if rng.random() < 0.2 else []
    try:
        return constrain(graph, pins, colocate, {}, {})
    except PlacementError:
        return constrain(graph, [], [], {}, {})


def random_tasks(rng: Random, graph: Graph, costs: Costs, constraints: Constraints) -> TaskGraph:
    """Every op a task of its own, or coarsened with some grain."""
    if rng.random() < 0.5:
        return group(graph, [[op.name] for op in graph.ops])
    return coarsen(graph, costs, constraints, rng.choice((None, 0.0, 1e-4, 1e-3)))


def scattered(rng: Random) -> Policy:
    """A policy that puts every task on any lane that it may have, in any order that respects every edge."""

    def policy(problem: Problem) -> Assignment:
        feasible = Feasible(problem)
        lanes: list[int] = []
        for task in range(len(problem.tasks)):
            processor = rng.choice(feasible.processors(task))
            feasible.assign(task, processor)
            lanes.append(problem.first_lane[processor] + rng.randrange(problem.processors[processor].lanes))
        waiting = [len(set(before)) for before in ([source for source, _ in each] for each in problem.before)]
        ready = [task for task, count in enumerate(waiting) if not count]
        order: list[int] = []
        while ready:
            order.append(ready.pop(rng.randrange(len(ready))))
            for after in set(problem.after[order[-1]]):
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        return answered(problem, "scattered", lanes, order, reasons=[""] * len(lanes))

    return policy


def lower(program: Program) -> Program:
    """A scheduled program, through every lowering."""
    for lowering in LOWERINGS:
        program = lowering(program)
    return program


def scheduled(tasks: TaskGraph, placement: Assignment, costs: Costs) -> Program:
    """The Runs of a placement, in the order that was decided."""
    return schedule(tasks, placement, costs.machine)


def place(policy: Policy, tasks: TaskGraph, costs: Costs, machine: Machine, constraints: Constraints) -> Assignment:
    """What the driver makes of a policy's answer."""
    return decided(pose(tasks, costs, machine, constraints), policy)


def build(
    graph: Graph, machine: Machine, costs: Costs, constraints: Constraints, tasks: TaskGraph, placement: Assignment
) -> Lowered:
    """Schedule and lower."""
    program = lower(scheduled(tasks, placement, costs))
    return Lowered(graph, machine, costs, constraints, tasks, placement, program)


def random_lowered(rng: Random, *, layouts: Sequence[tuple[str, ...]] = LAYOUTS, kinds: Sequence[str] = KINDS) -> Lowered:
    """A whole random program; mostly of the random policy, which leaves more to order than a good one would."""
    graph, machine = random_graph(rng, kinds=kinds), random_machine(rng, layouts)
    costs = random_costs(rng, graph, machine)
    constraints = random_constraints(rng, graph, machine)
    tasks = random_tasks(rng, graph, costs, constraints)
    if rng.random() < 0.7:
        placement = scattered(rng)(pose(tasks, costs, machine, constraints))
    else:
        placement = place(POLICIES[rng.choice(("by_level", "single"))](), tasks, costs, machine, constraints)
    return build(graph, machine, costs, constraints, tasks, placement)


def lowered_programs(
    *, layouts: Sequence[tuple[str, ...]] = LAYOUTS, kinds: Sequence[str] = KINDS
) -> st.SearchStrategy[Lowered]:
    """Random lowered programs, for hypothesis."""
    return st.randoms(use_true_random=False).map(lambda rng: random_lowered(rng, layouts=layouts, kinds=kinds))


def graphs(most_ops: int = 12, kinds: Sequence[str] = KINDS) -> st.SearchStrategy[Graph]:
    """Random graphs, for hypothesis."""
    return st.randoms(use_true_random=False).map(lambda rng: random_graph(rng, most_ops, kinds))


def lanes(*torch_devices: str) -> tuple[Lane, ...]:
    """One lane for each torch device named; the same device twice is two lanes of it."""
    names = [device.replace(":", "") for device in torch_devices]
    return tuple(
        Lane(f"{name}/{names[:number].count(name)}", name, device)
        for number, (name, device) in enumerate(zip(names, torch_devices, strict=True))
    )


def with_instructions(program: Program, instructions: Sequence[object]) -> Program:
    """The program with other instructions."""
    return replace(program, instructions=tuple(instructions))
