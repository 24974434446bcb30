"""What is tried, and when: the fields of a spec by which plans of one call may differ, by the names that a report shows.

asked_and_others(...)   the plan that was asked for, and what it has to beat
by_measured_ops(...)    plans made once more, by what ops were measured to take
refinements(...)        what is done to the fastest of them then
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from partitioner.ir.plan import Plan
from partitioner.planner.policies.by_level import ByLevel
from partitioner.planner.policies.list import List
from partitioner.planner.policies.single import Single
from partitioner.planner.policies.spread import Spread
from partitioner.spec.spec import Spec

Choices = dict[str, Any]
"""Fields of a spec."""

ASKED: Choices = {}
"""What was asked for, as it is."""

SERIAL = "serial"
"""The name of the plan on one lane with all threads. It wins unless another is clearly faster."""

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
"""What `tune` compares besides."""

BALANCED = "measured ops"
"""The name of the plan of the policy that was asked for, by what ops were measured to take."""

MEASURED: dict[str, Choices] = {
    BALANCED: {"profile": "auto"},
    "list, measured ops": {"policy": List(), "profile": "auto"},
}
"""Plans by what ops were measured to take. A roofline may be wrong by a factor of five for short ops, and by another one for
each kind of them, and branches are balanced by it."""

SCRIPTED: dict[str, Choices] = {"scripted": {"compile_tasks": "torchscript"}}
"""What short calls are tried with then, on the fastest of them and on the fastest with lanes: the same kernels, the same bits,
and no Python between them or in a hand-off."""

REFINED: dict[str, Choices] = {
    **SCRIPTED,
    "batched": {"compile_tasks": "batched"},
    "backward on lanes": {"backward": "lanes"},
}
"""What `tune` tries then, on the serial plan too: also fewer kernels, and in training a backward on the forward's lanes."""

AUTOTUNED: dict[str, Choices] = {"max-autotune": {"compile_tasks": "max-autotune"}}
"""What `tune` tries then, if inductor compiles tasks."""

SLOW = ("inductor", "max-autotune")
"""Compilers that take seconds or minutes for each plan."""

DOUBTFUL = 1.5
"""A predicted gain, or loss, up to this factor may be an error of the prediction."""


def asked_and_others(name: str, plan: Plan, spec: Spec, tune: bool | None, alike: bool) -> dict[str, Choices]:
    """What runs first: the plan that was asked for, and what it is held against.

    Args:
        name: of the one that was asked for.
        plan: that one, or of several graphs the longest.
        spec: what was asked for.
        tune: whether somebody asks for more of them.
        alike: whether plans would differ in nothing but how ops are called.
    """
    others = {} if alike else _others(plan, spec, tune)
    return others | {name: ASKED} | (op_by_op({name: ASKED}) if spec.compile_tasks is not None else {})


def _others(plan: Plan, spec: Spec, tune: bool | None) -> dict[str, Choices]:
    if spec.compile_tasks in SLOW:
        return BESIDE if tune else {SERIAL: BESIDE[SERIAL]}
    return CANDIDATES if tune or _is_doubtful(plan, spec) else BESIDE | REFUSED


def by_measured_ops(spec: Spec, tune: bool | None) -> dict[str, Choices]:
    """Plans by measured ops; of those that take long to compile one is, unless more are asked for."""
    if spec.compile_tasks not in SLOW:
        return MEASURED
    return (MEASURED if tune else {BALANCED: MEASURED[BALANCED]}) | op_by_op(MEASURED)


def op_by_op(candidates: Mapping[str, Choices]) -> dict[str, Choices]:
    """What compiled tasks are held against: plans whose ops are called one by one."""
    return {f"{name}, op by op": choices | {"compile_tasks": None} for name, choices in candidates.items()}


def refinements(spec: Spec, tune: bool | None, on_cpu: bool) -> Mapping[str, Choices]:
    """What else can be done to the fastest plans, and nobody has decided."""
    compiles = spec.compile_tasks
    if compiles is None and spec.says_how:
        return {}
    found = AUTOTUNED if tune and compiles == "inductor" else {}
    return found | (REFINED if tune and compiles is None else SCRIPTED) if on_cpu else found


def is_close(plan: Plan) -> bool:
    """Whether a plan is predicted to take about as long as the serial one."""
    return 1 / DOUBTFUL < (plan.serial or 0.0) / (plan.makespan or inf) < DOUBTFUL


def _is_doubtful(plan: Plan, spec: Spec) -> bool:
    """Whether `Auto` has found a plan that is too close to another to tell without running both."""
    return spec.policy_name == "auto" and is_close(plan)
