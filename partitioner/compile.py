"""The whole data flow, from a graph of a module to something that can be called in its place.

    found     = compiled(module)(call)                   torch.compile's tracer: a torch.fx graph, its guards
    graph     = build_graph(found)                       what happens, and what each op touches
    costs     = estimate(graph, machine)                 how long, how large
    tasks     = coarsen(graph, costs)                    ops -> tasks worth a launch
    problem   = pose(tasks, costs, machine)              numbers
    placement = decided(problem, policy)                 where, in what order, with how many threads
    program   = schedule(tasks, placement, machine)      runs
    program   = lowered(program)                         copies, events, frees
    execute   = BACKENDS[backend](plan)                  something to call, under the guards

Every program is verified before anything runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import nn

from partitioner.backends import backend_for
from partitioner.backends.backward.training import Training
from partitioner.backends.compiling.compiled import Compiled
from partitioner.backends.compiling.compilers import COMPILERS
from partitioner.backends.cudagraphs.graphs import Graphed, refuse_devices
from partitioner.backends.executable import Executable
from partitioner.backends.threads import Threads
from partitioner.errors import SpecError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.analysis.held import memory_of
from partitioner.frontend.analysis.sizes import Sizes
from partitioner.frontend.capture.dynamo import Found
from partitioner.frontend.check.interpret import interpret
from partitioner.frontend.trace import graph_of
from partitioner.ir.cost import Costs
from partitioner.ir.graph import Graph, StateMeta
from partitioner.ir.machine import Machine, accelerators_first, caps
from partitioner.ir.memory import Memory
from partitioner.ir.mode import Mode
from partitioner.ir.optimizer import optimizer_named
from partitioner.ir.plan import Plan
from partitioner.ir.units import quote
from partitioner.lower import lowered
from partitioner.lower.backward import backward
from partitioner.lower.fuse import fused
from partitioner.lower.modes import with_autocast
from partitioner.lower.planfile import read_plan
from partitioner.lower.room import with_least_peak, with_room
from partitioner.lower.runs import schedule
from partitioner.lower.verify import verify_memory
from partitioner.model.modes import modes_here
from partitioner.planner.coarsen import coarsen
from partitioner.planner.constraints import Constraints, constrain
from partitioner.planner.cost import estimate
from partitioner.planner.policies import Policy, decided, policy_of
from partitioner.planner.pose import pose
from partitioner.planner.replay import Replayed
from partitioner.planner.seconds import serial_seconds
from partitioner.planner.simulate import simulate
from partitioner.profile.profiled import profiled
from partitioner.runtime.admission import if_it_fits
from partitioner.runtime.pieces import Made
from partitioner.spec.discover import asked_for, pinned
from partitioner.spec.spec import Spec

GRAPH_EDGE = 2e-6
"""Seconds that are assumed from a kernel to one that waits for it on another branch of a CUDA graph."""


def on_lanes(model: nn.Module, machine: Machine, spec: Spec, found: Found) -> Made:
    """The program of a graph that the tracer found in a model, on lanes of one device."""
    asked = for_this_call(spec, model)
    return made_of(plan_of(graph_of(model, found), machine, asked), asked)


def made_of(plan: Plan, spec: Spec) -> Made:
    """A plan's program on lanes of one device."""
    return Made(executable_of(plan, spec), partial(interpret, plan.graph), admission(plan))


def executable_of(plan: Plan, spec: Spec) -> Executable:
    """What runs a plan on lanes of one device."""
    executable = with_backward(with_compiled(emit(plan, spec), spec), spec)
    return Graphed(executable) if spec.cuda_graphs else executable


def admission(plan: Plan) -> Callable[[Sequence[Any]], None] | None:
    """What holds calls of other sizes against the machine's memory caps; ``None`` if it has none, or sizes are fixed."""
    sizes = Sizes.of(plan.graph) if caps(plan.machine) else None
    if sizes is None or not sizes.sources:
        return None
    return if_it_fits(sizes.numbers, lambda numbers: verify_memory(plan, sizes.bytes_at(numbers)), sizes.only_grow)


def plan_of(
    traced: Traced,
    machine: Machine,
    spec: Spec,
    fixed: Mapping[str, str] = MappingProxyType({}),
    landed: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """Plan one graph.

    Args:
        traced: the graph, and its state.
        machine: what to plan for.
        spec: pins, colocations, policy, grain.
        fixed: device name of state that lies somewhere already, by qualified name.
        landed: device name of ops whose results something else than the graph goes on with.

    Raises:
        PlacementError, SpecError: what the spec does not allow.
    """
    graph = traced.graph
    state = traced.state_metas
    constraints = constrain(graph, pinned(machine, spec), spec.colocate, state, fixed, landed, layers=len(machine.places) > 1)
    costs = profiled(graph, estimate(graph, machine, state), spec.profile)
    memory = None
    if graph.observed and (caps(machine) or spec.objective == "memory"):
        optimizer = optimizer_named(spec.optimizer)
        memory = memory_of(traced, training=bool(spec.training), optimizer=optimizer, here=machine.on_cpus)
    return _placed(Known(graph, machine, costs, state, memory), constraints, spec)


def planned_again(plan: Plan, spec: Spec) -> Plan:
    """Plan the graph of a plan under another spec for the same machine, with the costs that are known of it.

    Raises:
        PlacementError, SpecError: what the spec does not allow.
    """
    layers = len(plan.machine.places) > 1
    constraints = constrain(plan.graph, pinned(plan.machine, spec), spec.colocate, plan.state, {}, layers=layers)
    return _placed(plan, constraints, spec)


class Known(NamedTuple):
    """What is known of a graph before anything is decided. A Plan knows it, too."""

    graph: Graph
    machine: Machine
    costs: Costs
    state: Mapping[str, StateMeta]
    memory: Memory | None


def _placed(known: Known | Plan, constraints: Constraints, spec: Spec) -> Plan:
    """Group, place, order and lower the ops of a graph. On several devices autocast follows each to its own."""
    policy, graph, machine, costs = policy_of(spec.policy), known.graph, known.machine, known.costs

    def maker(capped: Machine) -> Callable[[Machine], Plan]:
        """What plans for a machine that differs in its caps alone, and for the same with less memory."""
        decide: Policy
        if isinstance(policy, Replayed):
            decide, tasks = policy.on(graph)
        else:
            own = replace(costs, machine=capped)
            decide, tasks = partial(decided, policy=policy), coarsen(graph, own, constraints, spec.grain)

        def make(smaller: Machine) -> Plan:
            placement = decide(pose(tasks, costs, smaller, constraints, spec.objective, known.memory))
            program = lowered(schedule(tasks, placement, capped))
            return Plan(graph, capped, costs, tasks, placement, program, known.state, memory=known.memory)

        return make

    plan = with_least_peak(machine, maker) if spec.objective == "memory" else with_room(machine, maker)
    if len(machine.places) > 1:
        plan = with_autocast(plan, Mode(*modes_here()))
    if not graph.observed:
        return plan
    makespan = simulate(plan.program, costs, plan.tasks, plan.placement).makespan
    return replace(plan, serial=serial_seconds(costs, machine.devices[0]), makespan=makespan)


def for_this_call(spec: Spec, module: nn.Module) -> Spec:
    """The spec, which says whether a call is part of training if nobody did: in train mode, where gradients are enabled."""
    if spec.training is not None:
        return spec
    return spec.model_copy(update={"training": module.training and modes_here()[0]})


def with_backward(executable: Executable, spec: Spec) -> Executable:
    """With the backward on the program's lanes, if that is asked for; one that has a single thread stays as it is."""
    if spec.backward == "autograd" or not isinstance(executable, Threads) or executable.accelerated or executable.hosts == 1:
        return executable
    return Training(executable, backward)


def with_compiled(executable: Executable, spec: Spec) -> Executable:
    """With compiled tasks, if they are asked for."""
    if spec.compile_tasks is None or not isinstance(executable, Threads):
        return executable
    return Compiled(executable, COMPILERS[spec.compile_tasks], fused)


def replayed(
    plan: str | Path, devices: Any, spec: Any, fields: Mapping[str, Any], tune: bool | None = None
) -> tuple[Spec, Machine]:
    """What is asked for where a saved plan decides: the plan as the policy, and its machine unless another one is named.

    Raises:
        SpecError: the file is no plan, or something else is to decide, too.
    """
    for name, given in (*fields.items(), ("tune", tune)):
        if given and name not in ("backend", "backward", "compile_tasks", "cuda_graphs", "fullgraph"):
            raise SpecError(f"plan= decides what runs where, and so does {name}=; leave one of them out")
    saved = read_plan(plan)
    document, machine = asked_for(devices, spec, **{**fields, "policy": Replayed(saved, str(plan))})
    return document, machine if devices is not None or document.devices else accelerators_first(saved.machine())


def refuse_unmade(spec: Spec, machine: Machine) -> None:
    """Refuse what is known to be impossible before there is a model: names of nothing, and wishes that exclude each other.

    Raises:
        SpecError: there is such a wish.
    """
    policy_of(spec.policy)
    backend_for(spec.backend, machine)
    if spec.distributed is not None:
        raise SpecError(
            "the section distributed is for the ranks of a job, and this is one process; leave it out, or call "
            "partitioner.distributed.parallelize"
        )
    if spec.compile_tasks is not None and spec.backward == "lanes":
        raise SpecError('backward="lanes" needs the ops of a task one by one, and compile_tasks= hides them; leave one out')
    for wish, able in (("compile_tasks", ("threads", "streams")), ("cuda_graphs", ("streams",))):
        if getattr(spec, wish) and spec.backend not in ("auto", *able):
            raise SpecError(f"{wish}= is for backend {' or '.join(able)}, and not {quote(spec.backend)}; leave one of them out")
    if spec.cuda_graphs:
        refuse_devices(machine.places)


def as_captured(machine: Machine, spec: Spec) -> Machine:
    """The machine as programs see it that are captured, if they are to be: no op costs the host anything, nor a hand-off."""
    if not spec.cuda_graphs:
        return machine
    figures = ((each, GRAPH_EDGE if "handoff" in each.assumed else each.handoff) for each in machine.devices)
    return replace(machine, devices=tuple(replace(each, overhead=0.0, handoff=handoff) for each, handoff in figures))


def emit(plan: Plan, spec: Spec) -> Executable:
    """Make a plan callable, with the backend that the spec names or the machine asks for."""
    return backend_for(spec.backend, plan.machine)(plan)
