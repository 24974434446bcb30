"""The whole data flow, from a module to a module.

    graph     = trace(module, call)                      what happens, and what each op touches
    costs     = estimate(graph, machine)                 how long, how large
    tasks     = coarsen(graph, costs)                    ops -> tasks worth a launch
    placement = POLICIES[policy](tasks, costs, machine)  where, and how urgent
    program   = schedule(tasks, placement, costs)        in what order
    program   = lowering(program), for each              copies, events, frees
    execute   = BACKENDS[backend](plan)                  something to call

Every program is verified before anything runs it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import torch
from torch import nn

from partitioner.analysis.constraints import constrain
from partitioner.analysis.cost import estimate
from partitioner.backends import BACKENDS, Executable, default_backend
from partitioner.check import blame, compare, try_eager
from partitioner.coarsen import coarsen
from partitioner.errors import DifferenceError, InputError, PlacementError, SpecError, TraceError
from partitioner.ir.call import Call
from partitioner.ir.graph import Graph
from partitioner.ir.storage import storage_bytes
from partitioner.lower import LOWERINGS
from partitioner.machine import Machine
from partitioner.place import POLICIES
from partitioner.plan import Plan
from partitioner.schedule import schedule
from partitioner.spec import Spec
from partitioner.state import state_bytes, state_keys, state_tensors
from partitioner.trace.exporting import Open
from partitioner.trace.trace import trace
from partitioner.units import format_duration
from partitioner.verify import Case, capacity, verify

T = TypeVar("T")


def make_plan(
    module: nn.Module,
    call: Call | None,
    machine: Machine,
    spec: Spec,
    *,
    fixed: Mapping[str, str] | None = None,
    check: bool = False,
    open_dims: Open = frozenset(),
) -> Plan:
    """Plan one program of ``module``. Touches no device.

    Args:
        module: the model; left as it was.
        call: example arguments, if there are any.
        machine: what to plan for.
        spec: pins, colocations, policy, grain.
        fixed: device name of state that lies somewhere already, by qualified name.
        check: compare the traced graph with the model on the call, and try another front end if they differ.
        open_dims: dimensions to leave open, as ``(number of the tensor, dimension)``.

    Raises:
        TraceError, DifferenceError, PlacementError, SpecError: what the model or the spec does not allow.
    """
    policy = choice("policy", spec.policy, POLICIES)
    graph = faithful_graph(module, call, open_dims) if check and call else trace(module, call, open_dims=open_dims)
    state = state_tensors(module, graph)
    pins = [(pin.match, pin.device) for pin in spec.pins]
    constraints = constrain(graph, machine, pins, spec.colocate, state_keys(state), fixed or {})
    costs = estimate(graph, machine, state_bytes(state))
    tasks = coarsen(graph, costs, constraints, spec.grain)
    placement = policy(tasks, costs, machine, constraints)
    program = schedule(tasks, placement, costs)
    for lowering in LOWERINGS:
        program = lowering(program)
    plan = Plan(graph, machine, costs, tasks, placement, program)
    check_memory(plan, resident_bytes(plan, state))
    verify(program, tasks=tasks)
    return plan


def check_memory(plan: Plan, resident: Mapping[str, int]) -> None:
    """Policies count state; what the values between tasks add is known only now.

    Raises:
        PlacementError: the caps do not hold parameters, buffers and live values.
    """
    found = list(capacity(Case(plan.program, memory=caps(plan.machine), resident=resident)))
    if found:
        advice = "Raise the cap, add a device, pin parts of the model elsewhere, or plan for a smaller batch."
        raise PlacementError("\n".join([*(fault.message for fault in found), advice]))


def faithful_graph(module: nn.Module, call: Call, open_dims: Open = frozenset()) -> Graph:
    """Trace, and compare with the model; on a difference try the next front end.

    Raises:
        TraceError: no front end can trace the model.
        DifferenceError: those that can trace it do not compute what it computes.
    """
    differing: dict[str, str] = {}
    while True:
        try:
            graph = trace(module, call, skip=tuple(differing), open_dims=open_dims)
        except TraceError as error:
            if not differing:
                with naming_the_model(module):
                    try_eager(module, call)  # arguments that eager does not take either are no fault of tracing
                raise
            found = "\n".join(f"  {name}: {difference}" for name, difference in differing.items())
            raise DifferenceError(
                f"no traced program computes what {type(module).__name__} computes.\n{found}\n{error}"
            ) from error
        start = time.perf_counter()
        with naming_the_model(module):
            comparison = compare(graph, module, call)
        if comparison.difference is None:
            note = f"compared with eager on two inputs in {format_duration(time.perf_counter() - start)}: equal"
            notes = [f"{name} differed from eager in {what}" for name, what in differing.items()]
            return replace(graph, notes=(*graph.notes, *notes, *(comparison.notes or (note,))))
        differing[graph.frontend] = f"{comparison.difference}. {blame(graph, module, call)}".strip()


@contextmanager
def naming_the_model(module: nn.Module) -> Iterator[None]:
    """What the model itself raises on its example inputs is the caller's to mend."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{type(module).__name__} fails on the example inputs. {type(error).__name__}: {error}") from error


def emit(plan: Plan, spec: Spec) -> Executable:
    """Make a plan callable, with the backend that the spec names or the machine asks for."""
    name = default_backend(plan) if spec.backend == "auto" else spec.backend
    return choice("backend", name, BACKENDS)(plan)


def choice(what: str, name: str, registry: Mapping[str, T]) -> T:
    """Look a name up in a registry."""
    if name not in registry:
        raise SpecError(f"{what} {name!r} is not known. Known: {', '.join(sorted(registry))}.")
    return registry[name]


def caps(machine: Machine) -> dict[str, int]:
    """Memory cap in bytes of each torch device that has one."""
    return {device.torch_device: device.memory for device in machine.devices if device.memory is not None}


def resident_bytes(plan: Plan, state: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Bytes of parameters, buffers and constants on each torch device; tied ones count once."""
    total: defaultdict[str, int] = defaultdict(int)
    keys, counted = state_keys(state), set()
    for name, device in state_devices(plan.graph, plan).items():
        if name in state and keys[name] not in counted:
            counted.add(keys[name])
            total[device] += storage_bytes(state[name])
    return dict(total)


def state_devices(graph: Graph, plan: Plan) -> dict[str, str]:
    """The torch device on which each parameter, buffer and constant of the graph is used."""
    lanes, lane, task_of = plan.machine.lanes, plan.placement.lane, plan.tasks.task_of
    return {name: lanes[lane[task_of[op.name]]].torch_device for op in graph.ops for name in op.state}
