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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from partitioner.backends import BACKENDS, Executable, default_backend
from partitioner.errors import SpecError
from partitioner.frontend.trace import faithful_graph, trace
from partitioner.ir.graph import StateMeta
from partitioner.ir.machine import Machine, accelerators_first
from partitioner.ir.plan import Plan, places, state_devices
from partitioner.ir.signature import Open
from partitioner.lower import LOWERINGS
from partitioner.lower.runs import schedule
from partitioner.lower.verify import verify_plan
from partitioner.model.call import Call, example_call
from partitioner.model.hooks import silenced
from partitioner.model.state import copied, sizes, state_tensors
from partitioner.planner.coarsen import coarsen
from partitioner.planner.constraints import constrain
from partitioner.planner.cost import estimate
from partitioner.planner.policies import POLICIES
from partitioner.planner.timing import issue_order
from partitioner.runtime.entry import first_entry
from partitioner.runtime.module import Parallel
from partitioner.runtime.moving import move_state
from partitioner.spec.discover import build_machine, pinned, refuse_missing
from partitioner.spec.spec import Spec, load_spec

T = TypeVar("T")


def partition(
    model: nn.Module,
    devices: Sequence[str | torch.device] | None = None,
    *,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    spec: Spec | Mapping[str, Any] | str | Path | None = None,
    policy: str | None = None,
    backend: str | None = None,
    copy: bool = False,
    check: bool = True,
    **fields: Any,
) -> Parallel:
    """Partition ``model`` over devices and lanes.

    The result computes what ``model`` computes, with the same state_dict keys, ties, buffers and gradients; branches of equal
    depth overlap. The model is **moved, not copied**: its parameters go to their devices in place and the result shares them
    (memory is what people come for). ``copy=True`` leaves the model alone.

    Args:
        model: what to partition, in the mode (train or eval) that is needed first.
        devices: torch devices. One that is named twice gets two lanes (two streams); ``"cpu:0", "cpu:1"`` are two CPU lanes
            (threads); kinds may be mixed. ``None``: every accelerator found, otherwise a CPU lane for each core.
        example_inputs: positional arguments of a typical call, as a tuple, or a single tensor. With them shapes, bytes, FLOPs
            and effects are observed; without them parameter sizes are the costs and effects are told from names.
        example_kwargs: keyword arguments of that call.
        spec: a `Spec`, a mapping, or a path to a YAML, JSON or TOML file: devices, links, pins, colocations, policy, backend.
        policy: ``"by_level"`` (branches of equal depth balanced over lanes) or ``"single"`` (one lane).
        backend: ``"threads"``, ``"streams"`` or ``"reference"``; chosen from the devices if left out.
        copy: partition a deep copy.
        check: with example inputs, compare the traced program with eager once, on the examples and on a second draw of the
            same shapes: outputs, buffers and, where gradients are enabled, gradients. Costs two eager calls and a backward,
            and calls the hooks that modules inside the model have. Skipped on the meta device.
        **fields: any other field of `Spec`, such as ``pins``, ``colocate``, ``grain``.

    Returns:
        An ordinary module, with ``.dag``, ``.placement``, ``.program`` and ``.code`` to show what was made.

    Raises:
        SpecError: devices, policy, backend or spec are wrong.
        TraceError: no front end can trace the model.
        DifferenceError: what was traced does not compute what the model computes.
        PlacementError: pins and memory caps cannot be met, or a device is not on this machine.

    Example:
        >>> import torch
        >>> from partitioner import partition
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=torch.ones(2, 4))
        >>> torch.equal(parallel(torch.ones(2, 4)), model(torch.ones(2, 4)))
        True
        >>> list(parallel.state_dict()) == list(model.state_dict())
        True
    """
    document = load_spec(spec, policy=policy, backend=backend, **fields)
    machine = build_machine(document, devices)
    call = example_call(model, example_inputs, example_kwargs)
    model = copied(model) if copy else model
    plan = make_plan(model, call, machine, document, check=check)
    refuse_missing(plan.machine)
    execute = emit(plan, document)
    with torch.inference_mode(False):
        move_state(model, state_devices(plan), plan.machine.lanes[0].torch_device)

    def make(original: nn.Module, further: Call, first: Plan, open_dims: Open) -> Any:
        on_one_device = len(set(state_devices(first).values())) <= 1
        again = check and on_one_device  # eager cannot run on state that is spread over devices
        with silenced(original):
            plan = make_plan(original, further, machine, document, fixed=places(first), check=again, open_dims=open_dims)
        return emit(plan, document)

    return Parallel(model, first_entry(model, call, execute), make)


def planned(
    model: nn.Module,
    devices: Sequence[str | torch.device] | None = None,
    *,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    spec: Spec | Mapping[str, Any] | str | Path | None = None,
    policy: str | None = None,
    check: bool = True,
) -> Plan:
    """The plan that `partition` makes of the same arguments. Touches no device, and leaves the model alone."""
    document = load_spec(spec, policy=policy)
    machine = build_machine(document, devices)
    return make_plan(model, example_call(model, example_inputs, example_kwargs), machine, document, check=check)


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
        machine: what to plan for; accelerators are put first, for lane 0 is the caller's.
        spec: pins, colocations, policy, grain.
        fixed: device name of state that lies somewhere already, by qualified name.
        check: compare the traced graph with the model on the call, and try another front end if they differ.
        open_dims: dimensions to leave open, as ``(number of the tensor, dimension)``.

    Raises:
        TraceError, DifferenceError, PlacementError, SpecError: what the model or the spec does not allow.
    """
    policy = choice("policy", spec.policy, POLICIES)
    machine = accelerators_first(machine)
    graph = faithful_graph(module, call, open_dims) if check and call else trace(module, call, open_dims=open_dims)
    tensors = state_tensors(module, [name for op in graph.ops for name in op.state], graph.constants)
    state = {name: StateMeta(*sizes(tensor)) for name, tensor in tensors.items()}
    constraints = constrain(graph, pinned(machine, spec), spec.colocate, state, fixed or {})
    costs = estimate(graph, machine, state)
    tasks = coarsen(graph, costs, constraints, spec.grain)
    placement = policy(tasks, costs, machine, constraints)
    program = schedule(tasks, placement, machine, issue_order(tasks, placement, costs))
    for lowering in LOWERINGS:
        program = lowering(program)
    plan = Plan(graph, machine, costs, tasks, placement, program, state)
    verify_plan(plan)
    return plan


def emit(plan: Plan, spec: Spec) -> Executable:
    """Make a plan callable, with the backend that the spec names or the machine asks for."""
    name = default_backend(plan) if spec.backend == "auto" else spec.backend
    return choice("backend", name, BACKENDS)(plan)


def choice(what: str, name: str, registry: Mapping[str, T]) -> T:
    """Look a name up in a registry."""
    if name not in registry:
        raise SpecError(f"{what} {name!r} is not known. Known: {', '.join(sorted(registry))}.")
    return registry[name]
