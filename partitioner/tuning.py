"""Which plan is the fastest is measured: the graphs of the example call are run under several plans, in turns.

Predictions rank plans; they are wrong where nothing is known of an op but its size. So a plan that nobody has insisted on is
held against the serial ones before it is kept, and ``tune=True`` looks for better ones, too.

On several devices that is done for ``tune=True`` alone, for it takes memory: state stays where the plan that was asked for
wants it, the others read copies, and once one is kept its state moves.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from partitioner.backends.compiled import Compiled
from partitioner.backends.race import LONG, MATTERS, measured
from partitioner.backends.training import Training
from partitioner.compile import executable_of, for_this_call, planned_again
from partitioner.errors import SpecError
from partitioner.ir.plan import Plan, Tried, state_devices
from partitioner.model.call import Call
from partitioner.model.keep import state_kept
from partitioner.model.state import all_state
from partitioner.planner.policies.by_level import ByLevel
from partitioner.planner.policies.list import List
from partitioner.planner.policies.single import Single
from partitioner.planner.policies.spread import Spread
from partitioner.runtime.moving import move_state
from partitioner.runtime.pieces import Piece
from partitioner.runtime.programs import Programs
from partitioner.runtime.standins import Spares, can_be_repeated, repeatable
from partitioner.spec.spec import Spec

Choices = dict[str, Any]
"""Fields of a spec."""

ASKED: Choices = {}
"""What was asked for, as it is."""

SERIAL = "serial"
BESIDE: dict[str, Choices] = {
    SERIAL: {"policy": Single()},
    "serial, a lane's threads": {"policy": Single(narrow=True)},
}
"""What a plan is held against, by the name that a report shows."""

REFUSED: dict[str, Choices] = {"by_level": {"policy": ByLevel()}}
"""Lanes that were predicted not to pay, and so were not planned: run all the same where that may be an error."""

CANDIDATES: dict[str, Choices] = {
    **BESIDE,
    "list": {"policy": List()},
    "spread": {"policy": Spread()},
    "spread finely": {"policy": Spread(), "grain": 1e-9},
}
"""What `tune` compares besides, and what is compared without it where a call takes another time than any that was predicted."""

SCRIPTED: dict[str, Choices] = {"scripted": {"compile_tasks": "torchscript"}}
"""What short calls are tried with then, on the fastest of them and on the fastest with lanes: the same kernels, the same bits,
and no Python between them or in a hand-off."""

REFINED: dict[str, Choices] = {
    **SCRIPTED,
    "batched": {"compile_tasks": "batched"},
    "backward on lanes": {"backward": "lanes"},
}
"""What `tune` tries then, on the serial plan too: also fewer kernels, and in training a backward on the forward's lanes."""

SHORT = 2e-3
"""Seconds of a call from which on what guards take does not matter, nor Python between ops."""

LARGEST = 2_000
"""Ops of a graph up to which more plans are made of it without being asked for: of more, they take seconds."""

DOUBTFUL = 1.5
"""A predicted gain, or loss, up to this factor may be an error of the prediction."""

FAR = 4.0
"""How many times as long as predicted a call takes of whose ops too little is known to choose among plans."""


def refuse_untunable(call: Call | None, weights: object, between: bool) -> None:
    """Raise a SpecError if nothing can be tuned: there is no example call, or no values yet, or Python ``between`` graphs."""
    if call is None:
        raise SpecError("tune=True runs plans on an example call; give example_inputs")
    if weights is not None:
        raise SpecError("tune=True runs plans on values, and weights= reads those once a plan is made; leave one of them out")
    if between:
        raise SpecError("tune=True moves the state of one graph over several devices; leave it or fullgraph=False out")


def tuned(programs: Programs, spec: Spec, call: Call, tune: bool | None) -> tuple[Spec, tuple[Tried, ...], Plan | None]:
    """The spec whose plan is the fastest on a call, all that ran, and that plan, of the first graph.

    Args:
        programs: those of the call under ``spec``, whose state lies where they want it; left as they are, but that of several
            devices, state moves to where the fastest plan wants it.
        spec: what was asked for.
        call: the example.
        tune: whether better plans are looked for than the one asked for. ``None``: only where nobody insists on it, which is
            held against serial ones then.

    Returns:
        ``spec`` itself and nothing, if there is nothing to choose from, or the graphs cannot be run on stand-ins.
    """
    plan = programs.plan
    if plan is None:
        return spec, (), None
    alike = not tune and len(programs.machine.lanes) == 1  # plans that differ in nothing but how ops are called
    asked = SERIAL if len(set(plan.placement.lane.values())) == 1 else plan.placement.policy
    others = CANDIDATES if tune or _is_doubtful(plan, spec) else BESIDE | REFUSED
    wanted = ({} if alike else others) | {asked: ASKED}
    args, kwargs = call.fill(call.tensors)
    with state_kept(programs.original, args, kwargs):
        graphs = programs.graphs_of(args, kwargs)
    if not graphs or not all(can_be_repeated(*each, strangers=bool(tune)) for each in graphs):
        return spec, (), None
    if not tune and sum(len(piece.plan.graph.ops) for piece, _ in graphs) > LARGEST:
        return spec, (), None
    race = _Race(graphs, for_this_call(spec, programs.original), programs.original.training and torch.is_grad_enabled())
    with state_kept(programs.original, tensors=False), torch.random.fork_rng(race.accelerators):
        race.run(wanted)
        if not (tune or alike) and race.is_far_off():
            race.run(wanted | CANDIDATES)
        if programs.machine.lanes[0].kind == "cpu" and not spec.says_how:
            race.refine(tune)
    if len(race.seconds) < 2:
        return spec, (), None
    choices, plan = race.choices[race.best()], race.plans[race.best()][0]
    if choices and not programs.on_one:
        race.give_back()
        _move(programs, *graphs[0], plan)
    return (spec.model_copy(update=choices) if choices else spec), race.tried(), plan


def _move(programs: Programs, piece: Piece, arguments: Sequence[Any], plan: Plan) -> None:
    """Bring state to where a plan wants it."""
    named = zip(piece.plan.graph.arguments, arguments, strict=True)
    names = piece.plan.graph.states
    state = {names[name]: value for name, value in named if name in names and isinstance(value, Tensor)}
    with torch.inference_mode(False):
        move_state({**state, **all_state(programs.original)}, state_devices(plan), plan.machine.lanes[0].torch_device)


def may_gain(programs: Programs) -> bool:
    """Whether something faster may be found unasked: by lanes, or, of a call that is short, by another way to call its ops."""
    plan = programs.plan
    return len(programs.machine.lanes) > 1 or (plan is not None and (plan.makespan or 0.0) <= FAR * SHORT)


def is_insisted_on(spec: Spec) -> bool:
    """Whether somebody says who places or how to cut, wants the same bits each time, or would wait minutes for another plan."""
    fixed = spec.grain is not None or bool(spec.pins) or spec.objective != "latency"
    costly = spec.cuda_graphs or spec.compile_tasks == "inductor"
    return spec.policy_name not in ("auto", "by_level") or fixed or costly or torch.are_deterministic_algorithms_enabled()


class _Race:
    """Plans of some graphs that are run side by side.

    Args:
        graphs: with the arguments of a call.
        spec: what is asked for besides.
        backward: whether a backward belongs to a run.
    """

    def __init__(self, graphs: Sequence[tuple[Piece, Sequence[Any]]], spec: Spec, backward: bool) -> None:
        self.graphs, self.spec, self.backward = graphs, spec, backward
        self.spares = [Spares(arguments) for _, arguments in graphs]
        self.choices: dict[str, Choices] = {}
        self.plans: dict[str, list[Plan]] = {}
        self.ways: dict[str, Callable[[], None]] = {}
        self.seconds: dict[str, float] = {}

    @property
    def accelerators(self) -> list[str]:
        """The torch devices, of those that plans are made for, that are accelerators of this machine."""
        kind = getattr(torch.accelerator.current_accelerator(), "type", None)
        devices = (device for piece, _ in self.graphs[:1] for device in piece.plan.machine.devices)
        return [device.torch_device for device in devices if device.kind == kind]

    def run(self, candidates: Mapping[str, Choices]) -> None:
        """Run the plans of some candidates in turns. Two that are the same are one; one that cannot be made is none."""
        for name in candidates:
            if name not in self.ways:
                with suppress(Exception):  # what was asked for has been planned, and whoever calls it is told
                    self._add(name, candidates[name])
        entered = {name: self.ways[name] for name in candidates if name in self.ways}
        if len(entered) > 1:
            self.seconds |= measured(entered, self.accelerators)

    def refine(self, tune: bool | None) -> None:
        """Run what is fastest once more, with what can be done to any plan."""
        if not self.ways or not (tune or self.fastest() < SHORT):
            return
        ahead = {self.best(), self.best(on_lanes=True)} if self.seconds else set(self.choices)
        ahead |= {SERIAL} if tune else set()
        kept = {name: choices for name, choices in self.choices.items() if name in ahead}
        ways = itertools.product(kept.items(), (REFINED if tune else SCRIPTED).items())
        self.run(kept | {f"{name}, {how}": choices | more for (name, choices), (how, more) in ways})

    def fastest(self) -> float:
        """Seconds of the fastest so far; of one call, where there was nothing to compare."""
        if self.seconds:
            return min(self.seconds.values())
        start = time.perf_counter()
        next(iter(self.ways.values()))()
        return time.perf_counter() - start

    def is_far_off(self) -> bool:
        """Whether predictions say little of these graphs: a custom op may do anything."""
        return bool(self.ways) and FAR * max(map(self._predicted, self.plans)) < self.fastest() < LONG

    def _predicted(self, name: str) -> float:
        return sum(plan.makespan or 0.0 for plan in self.plans[name])

    def _add(self, name: str, choices: Choices) -> None:
        spec = self.spec.model_copy(update=choices)
        plans = [planned_again(piece.plan, spec) if choices else piece.plan for piece, _ in self.graphs]
        same = [each for each in self.plans if _identity(self.plans[each], self.choices[each]) == _identity(plans, choices)]
        if same:
            self.choices[same[0]] = min(choices, self.choices[same[0]], key=len)  # what was asked for changes nothing
            return
        if name in REFUSED and choices and not any(map(_is_close, plans)):
            return
        executables = (
            [executable_of(plan, spec) for plan in plans] if choices else [piece.executable for piece, _ in self.graphs]
        )
        if not all(_is_of_use(how, executables, self.backward) for how in choices):
            return
        made = zip(self.graphs, self.spares, plans, executables, strict=True)
        try:
            runs = [repeatable(piece, run, spares.enter(plan), self.backward) for (piece, _), spares, plan, run in made]
            _all(runs)  # what fails is no candidate: a backward from all results may, of ops that write what others keep
        except Exception:
            for spares, plan in zip(self.spares, plans, strict=True):
                spares.leave(plan)
            raise
        self.choices[name], self.plans[name], self.ways[name] = choices, plans, partial(_all, runs)

    def give_back(self) -> None:
        """Let go of all copies: nothing more is run."""
        self.ways, self.spares = {}, []

    def best(self, on_lanes: bool = False) -> str:
        """The fastest so far, or of those on several lanes, if there are any. Serial wins unless another is clearly faster."""
        several = [name for name in self.seconds if any(len(set(plan.placement.lanes)) > 1 for plan in self.plans[name])]
        names = several if on_lanes and several else self.seconds
        return min(names, key=lambda name: self.seconds[name] * (1 if name == SERIAL else MATTERS))

    def tried(self) -> tuple[Tried, ...]:
        """All that ran, first of all what is kept."""
        names = dict.fromkeys((self.best(), *self.seconds))
        return tuple(Tried(name, self._predicted(name), self.seconds[name]) for name in names)


def _all(runs: Sequence[Callable[[], None]]) -> None:
    for run in runs:
        run()


def _is_of_use(how: str, executables: Sequence[object], backward: bool) -> bool:
    """Whether a choice changes anything: there is something to compile, or a backward that has lanes."""
    if how == "compile_tasks":
        return any(isinstance(each, Compiled) and each.bodies for each in executables)
    return how != "backward" or (backward and any(isinstance(each, Training) for each in executables))


def _identity(plans: Sequence[Plan], choices: Choices) -> tuple[object, ...]:
    """What tells plans apart that run differently."""
    threads = [tuple(plan.placement.threads) if any(plan.placement.threads) else () for plan in plans]
    ways = choices.get("compile_tasks"), choices.get("backward")
    return *ways, *((str(plan.program), each) for plan, each in zip(plans, threads, strict=True))


def _is_doubtful(plan: Plan, spec: Spec) -> bool:
    """Whether `Auto` has found a plan that is too close to another to tell without running both."""
    return spec.policy_name == "auto" and _is_close(plan)


def _is_close(plan: Plan) -> bool:
    """Whether a plan is predicted to take about as long as the serial one."""
    return 1 / DOUBTFUL < (plan.serial or 0.0) / (plan.makespan or inf) < DOUBTFUL
