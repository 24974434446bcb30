"""The front door: a module goes in, and a module comes out whose calls go through the programs that `compile.py` makes.

partition     devices, spec and call -> Parallel
planned       the plan that `partition` would make, and nothing else: what the command line shows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partitioner.compile import (
    admission,
    as_captured,
    emit,
    for_this_call,
    made_of,
    on_lanes,
    planned_again,
    refuse_unmade,
    replayed,
    with_compiled,
)
from partitioner.errors import PlacementError, SpecError
from partitioner.frontend.capture.dynamo import Found, compiled
from partitioner.frontend.check.compare import is_meta
from partitioner.frontend.trace import hold_against_eager, home
from partitioner.ir.assignment import Assignment
from partitioner.ir.machine import Machine
from partitioner.ir.plan import Plan, state_devices
from partitioner.ir.problem import Problem
from partitioner.ir.words import refuse_mistaken
from partitioner.model.accept import accepted
from partitioner.model.call import Call, example_call, on_examples, repeatable
from partitioner.model.keep import state_kept
from partitioner.model.state import all_state, copied, lies_on_meta, only_device
from partitioner.planner.replay import Replayed
from partitioner.plans import is_between, is_whole, make_plan, plans_of_first, where_state_lies, without_graphs
from partitioner.runtime.alone import faster_alone
from partitioner.runtime.materialise import materialise
from partitioner.runtime.module import Parallel, parallel_of
from partitioner.runtime.moving import move_state, refuse_sharing
from partitioner.runtime.pieces import Made, Piece
from partitioner.runtime.programs import Programs
from partitioner.spec.discover import asked_for, refuse_missing
from partitioner.spec.entries import Faults
from partitioner.spec.spec import Spec
from partitioner.tuning.tuned import may_gain, refuse_untunable, tuned


def partition(
    model: nn.Module,
    devices: Sequence[str | torch.device] | None = None,
    *,
    example_inputs: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    spec: Spec | Mapping[str, Any] | str | Path | None = None,
    policy: str | Mapping[str, Any] | Callable[[Problem], Assignment] | None = None,
    backend: str | None = None,
    fullgraph: bool | None = None,
    backward: str | None = None,
    compile_tasks: str | None = None,
    cuda_graphs: bool | None = None,
    copy: bool = False,
    check: bool = True,
    pins: Any = None,
    colocate: Any = None,
    grain: Any = None,
    max_memory: Any = None,
    optimizer: str | None = None,
    profile: str | None = None,
    tune: bool | None = None,
    plan: str | Path | None = None,
    weights: str | Path | None = None,
    **mistaken: object,
) -> Parallel:
    """Partition ``model`` over devices and lanes.

    The result computes what ``model`` computes, with the same state_dict keys, ties, buffers and gradients; branches of equal
    depth overlap. The model is **moved, not copied**: its parameters go to their devices in place and the result shares them
    (memory is what people come for). ``copy=True`` leaves the model alone.

    Args:
        model: what to partition, in the mode (train or eval) that is needed first.
        devices: torch devices. One that is named twice gets two lanes (two streams); ``"cpu:0", "cpu:1"`` are two CPU lanes
            (threads); kinds may be mixed. ``None``: every accelerator found, otherwise a CPU lane for each core.
        example_inputs: positional arguments of a typical call, as a tuple, a single tensor, or a dict of keyword arguments.
            With them the model is traced and planned now; without them at its first call, and until then ``.dag`` and
            ``.placement`` show a provisional plan.
        example_kwargs: keyword arguments of that call.
        spec: a `Spec`, a mapping, or a path to a YAML, JSON or TOML file: devices, links, pins, colocations, policy, backend.
        policy: a name in `POLICIES`, such as ``"by_level"`` (branches of equal depth balanced over lanes), ``"auto"`` or
            ``"single"`` (one lane); ``{"name": "exact", "time_limit": "10s"}``; or a function of a `Problem`.
        backend: ``"threads"``, ``"streams"`` or ``"reference"``; chosen from the devices if left out.
        fullgraph: whether one graph must be all of a call, as for `torch.compile`. ``False``: Python may stand between graphs
            also where state lies on several devices, as for a branch on what layers have computed, a `print`, an array of
            numpy. It then finds what it goes on with on the first of them. ``True``: a graph break is refused. ``None``: it is
            refused where state lies on several devices.
        backward: ``"lanes"``: on CPU lanes each task's backward runs on the lane of its forward, and gradients are summed in
            eager's order; where that cannot be done, ``print(parallel)`` says why. ``"autograd"``, if left out: one thread.
        compile_tasks: ``"torchscript"``: what a lane runs between two hand-offs is one function, the same kernels, no Python
            between them, bit for bit equal; ``"batched"``: likewise, and equal ops of one level are one, equal to rounding;
            ``"frozen"``: likewise, on a CPU without gradients, on copies of weights laid out for kernels, until one is written;
            ``"inductor"``: torch.compile's fused kernels (C++, Triton), equal to rounding; ``"max-autotune"``: the fastest of
            those. What cannot be compiled, or is measured to be no faster so (see ``tune``), is called op by op.
        cuda_graphs: a call on lanes of one CUDA device becomes one launch: the second call of each set of sizes is captured and
            replayed from then on, and so is its backward. Arguments are copied in, results out. Refused where it cannot be.
        copy: partition a deep copy.
        check: with example inputs, compare what will be called with eager once, on the examples and on a second draw of the
            same shapes: outputs, buffers and, where gradients are enabled, gradients. Costs two calls and a backward of
            each, which call the hooks that modules inside the model have.
        pins: ops whose device is given, as in `Spec`: ``[{"match": "encoder.*", "device": "cuda:0"}]``.
        colocate: lists of globs, as in `Spec`; the ops that match any glob of one list share a device.
        grain: seconds of the shortest task worth a launch of its own, or text such as ``"100us"``.
        max_memory: bytes that a plan may use of each device, ``{"cuda:0": "20GiB"}``: parameters, buffers, what is alive at
            once and, in train mode with gradients enabled, gradients, what backward needs, and the optimizer's state.
        optimizer: the optimizer's name, such as ``"adamw"``, so that its state counts.
        profile: ``"auto"``: time the ops that make up most of the call, each once for its shapes, and plan with what they take;
            ``"all"``: all of them. Kept on disk for the next time. ``None``: plan with a roofline, and see ``tune``.
        tune: run several plans on the example call, the serial one among them, in turns, and keep the fastest; on CPU lanes
            that one, the fastest with lanes and the serial one with compiled tasks, too, and with ``backward="lanes"`` in
            training. On several devices plans that want state elsewhere read copies, if memory caps leave room, and the kept
            plan's state moves at the end. ``None``: on one device, with examples and nobody who says how to plan, lanes have
            to be faster than serial plans, ops are measured where lanes may gain, and a CPU's short calls have TorchScript's
            functions; with ``check``, calls no larger are made as they are if that is faster. ``False``: it is predicted.
        plan: a file that `save_plan` wrote, which then decides in the place of a policy, on the devices that it names unless
            others are given: as many, of the same kinds and lanes. A call that it holds no plan for is refused.
        weights: of a model that was built under ``torch.device("meta")``: a safetensors file, its index, or their folder. The
            model is planned without them, and each tensor then goes from its file straight to its device.
        **mistaken: none; a misspelt argument is told by its right name.

    Returns:
        An ordinary module, with ``.dag``, ``.placement``, ``.program`` and ``.code`` to show what was made.

    Raises:
        SpecError: devices, policy, backend or spec are wrong.
        InputError: ``model`` is no model that can be traced, or fails on the example inputs.
        TraceError: with state on several devices, the model cannot be traced as one graph.
        DifferenceError: what would be called does not compute what the model computes.
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
    refuse_mistaken(mistaken, partition)
    flags = Faults("the arguments of partition")
    for name, value in (("copy", copy), ("check", check), ("tune", False if tune is None else tune)):
        flags.flag(name, value)
    flags.check()
    model = accepted(model._partitioner_programs.original if isinstance(model, Parallel) else model, loaded=weights is None)
    fields: dict[str, Any] = {"policy": policy, "backend": backend, "backward": backward, "compile_tasks": compile_tasks}
    fields |= {"cuda_graphs": cuda_graphs, "pins": pins, "colocate": colocate, "grain": grain, "profile": profile}
    fields |= {"max_memory": max_memory, "optimizer": optimizer, "fullgraph": fullgraph}
    document, machine = asked_for(devices, spec, **fields) if plan is None else replayed(plan, devices, spec, fields, tune)
    refuse_unmade(document, machine)
    machine = as_captured(machine, document)
    call = example_call(model, example_inputs, example_kwargs)
    refuse_missing(machine)
    model = copied(model) if copy else model
    if tune:
        refuse_untunable(call, weights, is_between(document, machine))
    if weights is not None:
        return parallel_of(_loaded(model, call, machine, document, weights, check))
    origin, programs = only_device(model), _programs(model, machine, document)
    if call is None:
        programs.provisional = copy_context().run(_provisional, programs.original, machine, document)
        return parallel_of(programs)
    copy_context().run(_prepare, programs, call, document, check)
    if tune or (tune is None and may_gain(programs, document)):
        programs = copy_context().run(_tuned, programs, call, document, tune, check, origin)
    return parallel_of(programs)


def _tuned(programs: Programs, call: Call, spec: Spec, tune: bool | None, check: bool, origin: str | None) -> Programs:
    """The programs of the plan that is measured to be the fastest; those that are there, if it is theirs."""
    chosen, tried, plans = tuned(programs, spec, call, tune)
    if plans and programs.on_one:
        _replan(programs, chosen, origin, dict(plans))
        if check:
            _hold(programs, call)
    elif plans:  # its graph has been held against eager, and state lies where it wants it
        programs = _programs(programs.original, programs.machine, chosen, origin)
        programs.are_placed(plans[0][1])
    programs.tried = tried
    if check and "backward" not in spec.model_fields_set:
        programs.alone = faster_alone(programs, call, tried)
    return programs


def _replan(programs: Programs, spec: Spec, origin: str | None, plans: Mapping[Piece, Plan]) -> None:
    """Give all graphs of lanes of one device programs under another spec, some of known plans, behind the guards they have."""
    model, machine = programs.original, programs.machine
    programs.make = partial(on_lanes, model, machine, spec)
    programs.of_twin = partial(_programs, machine=machine, spec=spec, origin=origin)
    asked = for_this_call(spec, model)
    for piece in programs.pieces:
        piece.becomes(made_of(plans.get(piece) or planned_again(piece.plan, asked), asked))


def _loaded(model: nn.Module, call: Call | None, machine: Machine, spec: Spec, weights: str | Path, check: bool) -> Programs:
    """The programs of a model that lies on the meta device, once its weights lie where its plan wants them."""
    if call is None:
        raise SpecError("weights= puts each tensor where the plan of a call wants it; give example_inputs")
    if not is_meta(model, call):
        raise SpecError('weights= is for a model built under torch.device("meta"), and this one has values; leave it out')
    if is_between(spec, machine):
        raise SpecError("weights= plans without values, of which Python may ask between graphs; leave fullgraph=False out")
    with on_examples(model):
        plan = make_plan(model, call.on("meta"), machine, spec)
    materialise(model, weights, state_devices(plan), machine.lanes[0].torch_device)
    programs = _programs(model, machine, spec)
    if programs.place is None and not is_meta(model, call):
        _prepare(programs, call, spec, check)
    else:
        programs.are_placed(plan)
    return programs


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
    document, machine = asked_for(devices, spec, policy=policy)
    refuse_unmade(document, machine)
    machine = as_captured(machine, document)
    call = example_call(model, example_inputs, example_kwargs)
    if call is not None and lies_on_meta(model):
        call = call.on("meta")
    with on_examples(model):
        return make_plan(model, call, machine, document, check=check)


def _programs(model: nn.Module, machine: Machine, spec: Spec, origin: str | None = None) -> Programs:
    """The programs of ``model``, of which none is made yet.

    Args:
        model: the model.
        machine: devices and lanes.
        spec: pins, colocations, policy, backend, grain.
        origin: torch device for which it was written; ``None`` for the one on which it lies.
    """
    lies, first = only_device(model), machine.lanes[0].torch_device
    origin = origin or lies or first

    def placed(found: Found) -> Made:
        plan = where_state_lies(model, found, machine, spec, programs.homes)
        return Made(with_compiled(emit(plan, spec), spec), refuse_sharing, admission(plan))

    make = placed if len(machine.places) > 1 else partial(on_lanes, model, machine, spec)
    trace = partial(compiled, whole=is_whole(spec, machine), apart=len(machine.places) > 1, home=partial(home, machine, origin))
    programs = Programs(model, machine, make, trace, partial(_programs, machine=machine, spec=spec, origin=origin))
    if len(machine.places) > 1 or lies != first:
        programs.place = lambda args, kwargs: _place(programs, repeatable(Call.of(args, kwargs)), spec, check=False)
    return programs


def _prepare(programs: Programs, call: Call, spec: Spec, check: bool) -> None:
    """Make the programs of the example call, and hold them against eager; put state where it belongs."""
    model = programs.original
    if programs.place is not None:
        with on_examples(model):
            _place(programs, call, spec, check)
        programs.place = None
    elif check and not is_meta(model, call):
        _hold(programs, call)
    else:
        with state_kept(model, *call.leaves), on_examples(model):
            programs.trace_only(*call.fill(call.tensors))
    if not programs.pieces and programs.provisional is None:
        plan = _provisional(model, programs.machine, spec)  # it has no ops, or none that can be traced
        programs.provisional = None if plan is None else without_graphs(plan, programs.forward.reasons.values())


def _hold(programs: Programs, call: Call) -> None:
    """Hold what the programs of a call compute against eager."""
    hold_against_eager(programs.original, call, lambda *args, **kwargs: programs.run("forward", args, kwargs), programs.plainly)


def _place(programs: Programs, call: Call, spec: Spec, check: bool) -> None:
    """Plan for a call where state lies at the moment, wherever its arguments do, and move it to where the plan wants it."""
    model, first = programs.original, programs.machine.lanes[0].torch_device
    plans = plans_of_first(model, call, programs.machine, spec, check=check)
    programs.provisional, programs.homes = plans.shown, plans.homes
    with torch.inference_mode(False):
        move_state({**plans.state, **all_state(model)}, plans.homes, first)


def _provisional(model: nn.Module, machine: Machine, spec: Spec) -> Plan | None:
    """What can be planned without examples. A model that torch.fx cannot see is none the worse for it."""
    if isinstance(spec.policy, Replayed):
        return None  # a saved plan is for the graph of a call
    try:
        return make_plan(model, None, machine, spec)
    except (SpecError, PlacementError):
        raise
    except Exception:  # the user's forward ran on proxies, and what it gave may be anything
        return None
