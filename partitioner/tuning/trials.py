"""Plans of some graphs, run side by side on stand-ins of a call's arguments: what `tuned` compares.

trials.run(BESIDE | {"by_level": ASKED})         made, and called in turns
trials.run({"by_level": ..., "measured ops": ...})
trials.refine(tune)                              the fastest once more, its tasks compiled
trials.best()                                    "measured ops"
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from partitioner.backends.backward.training import Training
from partitioner.backends.compiling.compiled import Compiled
from partitioner.backends.race import LONG, MATTERS, measured
from partitioner.compile import executable_of, planned_again
from partitioner.ir.dag import upward_priority
from partitioner.ir.plan import Plan, Tried
from partitioner.profile.profiled import profiled
from partitioner.runtime.pieces import Piece
from partitioner.runtime.standins import Spares, repeatable
from partitioner.spec.spec import Spec
from partitioner.tuning.candidates import REFUSED, SERIAL, Choices, is_close

SHORT = 2e-3
"""Seconds of a call from which on what guards take does not matter, nor Python between ops."""

LONG_ENOUGH = 1e-4
"""Seconds of a call from which on it is worth to measure its ops: in shorter ones no branch pays for a hand-off."""

CHAIN = 0.9
"""The part of a graph's work that lies on its longest path from which on no plan of lanes gains what matters."""

BRIEF = 0.02
"""Seconds that are spent on measuring an op unasked, with one number of threads, unless it is longer than that."""


class Trials:
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
        self.identities: dict[str, tuple[object, ...]] = {}

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

    def refine(self, hows: Mapping[str, Choices], tune: bool | None) -> None:
        """Run what is fastest once more, with what can be done to any plan; unasked, if it is short."""
        if not self.ways or not hows or not (tune or self.fastest() < SHORT):
            return
        kept = self.ahead((SERIAL,) if tune else ())
        ways = itertools.product(kept.items(), hows.items())
        self.run(kept | {f"{name}, {how}": choices | more for (name, choices), (how, more) in ways})

    def fastest(self) -> float:
        """Seconds of the fastest so far; of one call, where there was nothing to compare."""
        if self.seconds:
            return min(self.seconds.values())
        start = time.perf_counter()
        next(iter(self.ways.values()))()
        return time.perf_counter() - start

    def may_be_mistaken(self) -> bool:
        """Whether plans were made without measured ops, and others may gain: not all ops follow each other."""
        unmeasured = not any(piece.plan.costs.measured for piece, _ in self.graphs)
        parallel = unmeasured and bool(self.ways) and not all(map(_is_chain, self.graphs))
        return parallel and LONG_ENOUGH <= self.fastest() < LONG

    def _predicted(self, name: str) -> float:
        return sum(plan.makespan or 0.0 for plan in self.plans[name])

    def _add(self, name: str, choices: Choices) -> None:
        spec = self.spec.model_copy(update=choices)
        known = self._measured if choices.get("profile") else [piece.plan for piece, _ in self.graphs]
        plans = [planned_again(plan, spec) if choices else plan for plan in known]
        identity = _identity(plans, spec)
        same = [each for each, known in self.identities.items() if known == identity]
        if same:
            self.choices[same[0]] = min(choices, self.choices[same[0]], key=len)  # what was asked for changes nothing
            return
        if name in REFUSED and choices and not any(map(is_close, plans)):
            return
        executables = (
            [executable_of(plan, spec) for plan in plans] if choices else [piece.executable for piece, _ in self.graphs]
        )
        if not all(_is_of_use(how, executables, self.backward) for how, wanted in choices.items() if wanted is not None):
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
        self.identities[name] = identity

    @cached_property
    def _measured(self) -> list[Plan]:
        """The plans that were asked for, with what ops were measured to take."""
        plans = [piece.plan for piece, _ in self.graphs]
        return [replace(plan, costs=profiled(plan.graph, plan.costs, "auto", budget=BRIEF)) for plan in plans]

    def give_back(self) -> None:
        """Let go of all copies: nothing more is run."""
        self.ways, self.spares = {}, []

    def best(self, on_lanes: bool = False) -> str:
        """The fastest so far, or of those on several lanes, if there are any. Serial wins unless another is clearly faster."""
        several = [name for name in self.seconds if any(len(set(plan.placement.lanes)) > 1 for plan in self.plans[name])]
        names = several if on_lanes and several else self.seconds
        return min(names, key=lambda name: self.seconds[name] * (1 if name == SERIAL else MATTERS))

    def ahead(self, others: Sequence[str] = ()) -> dict[str, Choices]:
        """The fastest so far, and the fastest on lanes, and others; all that there is, where nothing has been compared."""
        names = {self.best(), self.best(on_lanes=True), *others} if self.seconds else {*self.choices}
        return {name: choices for name, choices in self.choices.items() if name in names}

    def tried(self) -> tuple[Tried, ...]:
        """All that ran, first of all what is kept."""
        names = dict.fromkeys((self.best(), *self.seconds))
        return tuple(Tried(name, self._predicted(name), self.seconds[name]) for name in names)


def _is_chain(graph: tuple[Piece, Sequence[Any]]) -> bool:
    """Whether nearly all of a graph's work lies on one path."""
    plan = graph[0].plan
    device = plan.machine.devices[0]
    seconds = {op.name: plan.costs.op_time(op.name, device, 1) for op in plan.graph.ops}
    longest = max(upward_priority(plan.graph.dag, seconds.__getitem__).values(), default=0.0)
    return longest >= CHAIN * sum(seconds.values())


def _all(runs: Sequence[Callable[[], None]]) -> None:
    for run in runs:
        run()


def _is_of_use(how: str, executables: Sequence[object], backward: bool) -> bool:
    """Whether a choice changes anything: there is something to compile, or a backward that has lanes."""
    if how == "compile_tasks":
        return any(isinstance(each, Compiled) and each.bodies for each in executables)
    return how != "backward" or (backward and any(isinstance(each, Training) for each in executables))


def _identity(plans: Sequence[Plan], spec: Spec) -> tuple[object, ...]:
    """What tells plans apart that run differently."""
    threads = [tuple(plan.placement.threads) if any(plan.placement.threads) else () for plan in plans]
    return spec.compile_tasks, spec.backward, *((str(plan.program), each) for plan, each in zip(plans, threads, strict=True))
