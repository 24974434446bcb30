"""`partition`: the one function that most users call."""

from __future__ import annotations

import copy as copying
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partitioner.attributes import Attributes
from partitioner.compile import emit, make_plan, state_devices
from partitioner.discover import build_machine, missing_devices
from partitioner.entry import Entry
from partitioner.errors import InputError, PlacementError
from partitioner.hooks import hooked, silenced
from partitioner.ir.call import Call, flatten_call, guess_call, refuse_unusual, sharing
from partitioner.machine import Machine
from partitioner.module import Parallel
from partitioner.plan import Plan
from partitioner.spec import Spec, load_spec
from partitioner.state import move_state
from partitioner.trace.exporting import Open


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
    machine = accelerators_first(build_machine(document, devices))
    call = example_call(model, example_inputs, example_kwargs)
    model = copied(model) if copy else model
    plan = make_plan(model, call, machine, document, check=check)
    refuse_missing(machine)
    execute = emit(plan, document)
    with torch.inference_mode(False):
        move_state(model, state_devices(plan.graph, plan), machine.lanes[0].torch_device)

    def make(original: nn.Module, further: Call, first: Plan, open_dims: Open) -> Any:
        on_one_device = len(set(state_devices(first.graph, first).values())) <= 1
        again = check and on_one_device  # eager cannot run on state that is spread over devices
        with silenced(original):
            plan = make_plan(original, further, machine, document, fixed=places(first), check=again, open_dims=open_dims)
        return emit(plan, document)

    return Parallel(model, first_entry(model, call, execute), make)


def first_entry(model: nn.Module, call: Call | None, execute: Any) -> Entry:
    """The entry of the program that was made from the examples, or from a guessed call."""
    used = guess_call(model) if call is None else call
    tensors, structure = flatten_call(*used.fill(used.tensors))
    shapes = None if call is None else tuple((tensor.shape, tensor.dtype) for tensor in tensors)
    flags = tuple(module.training for module in model.modules())
    attributes = Attributes.of(model, execute.plan.graph.signature)
    return Entry(execute, structure, flags, 0, shapes, sharing(tensors), attributes, hooked(model))


def places(plan: Plan) -> dict[str, str]:
    """Device name of all state that a plan has placed."""
    names = {lane.torch_device: lane.device for lane in plan.machine.lanes}
    kept = {name: names[device] for name, device in state_devices(plan.graph, plan).items()}
    return {name: device for name, device in kept.items() if name not in plan.graph.constants}


def copied(model: nn.Module) -> nn.Module:
    """A deep copy.

    Raises:
        InputError: something in the model cannot be copied.
    """
    try:
        with torch.inference_mode(False):  # tensors that are made under it can never be trained
            return copying.deepcopy(model)
    except Exception as error:  # whatever lies in the model may refuse
        raise InputError(
            f"{type(model).__name__} cannot be copied. {type(error).__name__}: {error}\n"
            "Leave out copy=True, and the model itself is partitioned; or build it again."
        ) from error


def example_call(model: nn.Module, inputs: Any, kwargs: Mapping[str, Any] | None) -> Call | None:
    """The example call, or ``None`` if there is none.

    Raises:
        InputError: the examples do not fit the signature of the model's forward, or are of a kind that has no storage.
    """
    if inputs is None and kwargs is None:
        return None
    if inputs is None:
        inputs = ()
    args = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    call = Call.of(args, dict(kwargs or {}))
    try:
        names = call.names(model.forward)
    except (TypeError, KeyError) as error:
        raise InputError(f"example inputs do not fit {type(model).__name__}.forward: {error}") from error
    refuse_unusual(names, call.tensors)
    return call


def accelerators_first(machine: Machine) -> Machine:
    """Lane 0 is the caller's: its stream where there is an accelerator, for then the host never waits at the end."""
    ordered = sorted(machine.devices, key=lambda device: device.kind == "cpu")
    return Machine(tuple(ordered), machine.links)


def refuse_missing(machine: Machine) -> None:
    """Raise if a device of the plan cannot be used by this process."""
    missing = missing_devices(machine)
    if missing:
        raise PlacementError(
            f"{', '.join(missing)} cannot be used here: torch finds {torch.accelerator.device_count()} accelerators.\n"
            "The plan itself can be made and shown: `python -m partitioner inspect`. To run here, name devices that are there, "
            "such as 'cpu:0', 'cpu:1'."
        )
