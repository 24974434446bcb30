"""Which plan is the fastest is measured: the graphs of the example call are run under several plans, in turns.

Predictions rank plans; they are wrong where nothing is known of an op but its size. So a plan that nobody has insisted on is
held against the serial ones before it is kept, and ``tune=True`` looks for better ones, too.

On several devices that is done for ``tune=True`` alone, for it takes memory: state stays where the plan that was asked for
wants it, the others read copies, and once one is kept its state moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from partitioner.compile import for_this_call
from partitioner.errors import SpecError
from partitioner.ir.plan import Plan, Tried, state_devices
from partitioner.model.call import Call
from partitioner.model.keep import state_kept
from partitioner.model.state import all_state
from partitioner.runtime.moving import move_state
from partitioner.runtime.pieces import Piece
from partitioner.runtime.programs import Programs
from partitioner.runtime.standins import can_be_repeated
from partitioner.spec.spec import Spec
from partitioner.tuning.candidates import SERIAL, asked_and_others, by_measured_ops, refinements
from partitioner.tuning.trials import SHORT, Trials

LARGEST = 2_000
"""Ops of a graph up to which more plans are made of it without being asked for: of more, they take seconds."""

FAR = 4.0
"""How many times as long as predicted a short call may take."""


def refuse_untunable(call: Call | None, weights: object, between: bool) -> None:
    """Raise a SpecError if nothing can be tuned: there is no example call, or no values yet, or Python ``between`` graphs."""
    if call is None:
        raise SpecError("tune=True runs plans on an example call; give example_inputs")
    if weights is not None:
        raise SpecError("tune=True runs plans on values, and weights= reads those once a plan is made; leave one of them out")
    if between:
        raise SpecError("tune=True moves the state of one graph over several devices; leave it or fullgraph=False out")


class Chosen(NamedTuple):
    """The spec whose plans are the fastest on a call, all that ran, and these plans of the graphs that have other ones now."""

    spec: Spec
    tried: tuple[Tried, ...] = ()
    plans: Sequence[tuple[Piece, Plan]] = ()


def tuned(programs: Programs, spec: Spec, call: Call, tune: bool | None) -> Chosen:
    """What is the fastest on a call.

    Args:
        programs: those of the call under ``spec``, whose state lies where they want it; left as they are, but that of several
            devices, state moves to where the fastest plan wants it.
        spec: what was asked for.
        call: the example.
        tune: whether better plans are looked for than the one asked for. ``None``: only where nobody insists on it, which is
            held against serial ones then.

    Returns:
        ``spec`` itself and no plan, if there is nothing to choose from, or the graphs cannot be run on stand-ins.
    """
    plan = programs.plan
    if plan is None:
        return Chosen(spec)
    alike = not tune and len(programs.machine.lanes) == 1  # plans that differ in nothing but how ops are called
    asked = SERIAL if len(set(plan.placement.lane.values())) == 1 else plan.placement.policy
    args, kwargs = call.fill(call.tensors)
    with state_kept(programs.original, args, kwargs):
        graphs = programs.graphs_of(args, kwargs)
    if not graphs or not all(can_be_repeated(*each, strangers=bool(tune)) for each in graphs):
        return Chosen(spec)
    if not tune and sum(len(piece.plan.graph.ops) for piece, _ in graphs) > LARGEST:
        return Chosen(spec)
    trials = Trials(graphs, for_this_call(spec, programs.original), programs.original.training and torch.is_grad_enabled())
    with state_kept(programs.original, tensors=False), torch.random.fork_rng(trials.accelerators):
        trials.run(asked_and_others(asked, plan, spec, tune, alike))
        if not alike and trials.may_be_mistaken():
            trials.run(trials.ahead() | by_measured_ops(spec, tune))
        trials.refine(refinements(spec, tune, programs.machine.lanes[0].kind == "cpu"), tune)
    if len(trials.seconds) < 2:
        return Chosen(spec)
    choices, plans = trials.choices[trials.best()], trials.plans[trials.best()]
    if not choices:
        return Chosen(spec, trials.tried())
    if not programs.on_one:
        trials.give_back()
        _move(programs, *graphs[0], plans[0])
    pieces = [piece for piece, _ in graphs]
    return Chosen(spec.model_copy(update=choices), trials.tried(), list(zip(pieces, plans, strict=True)))


def _move(programs: Programs, piece: Piece, arguments: Sequence[Any], plan: Plan) -> None:
    """Bring state to where a plan wants it."""
    named = zip(piece.plan.graph.arguments, arguments, strict=True)
    names = piece.plan.graph.states
    state = {names[name]: value for name, value in named if name in names and isinstance(value, Tensor)}
    with torch.inference_mode(False):
        move_state({**state, **all_state(programs.original)}, state_devices(plan), plan.machine.lanes[0].torch_device)


def may_gain(programs: Programs, spec: Spec) -> bool:
    """Whether something faster may be found unasked: by lanes of one device, or by another way to call ops."""
    plan = programs.plan
    if not programs.on_one or _is_insisted_on(spec):
        return False
    several = len(programs.machine.lanes) > 1 or spec.compile_tasks is not None
    return several or (plan is not None and (plan.makespan or 0.0) <= FAR * SHORT)


def _is_insisted_on(spec: Spec) -> bool:
    """Whether somebody says who places or how to cut, wants the same bits each time, or graphs that are captured."""
    fixed = spec.grain is not None or bool(spec.pins) or spec.objective != "latency"
    named = spec.policy_name not in ("auto", "by_level")
    return named or fixed or spec.cuda_graphs or torch.are_deterministic_algorithms_enabled()
