"""`tune=True`: which plan is the fastest is measured on the example call, with the serial plan among those that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from partitioner.errors import SpecError
from partitioner.ir.machine import Machine
from partitioner.ir.plan import Plan, Tried
from partitioner.model.call import Call
from partitioner.model.keep import state_kept
from partitioner.planner.policies.list import List
from partitioner.planner.policies.single import Single
from partitioner.planner.policies.spread import Spread
from partitioner.runtime.programs import Programs
from partitioner.runtime.tuning import measured
from partitioner.spec.spec import Spec

Make = Callable[[Spec], Programs]

SERIAL = "serial"
MATTERS = 1.05
"""How much faster than the serial plan another one must be measured to be."""

CANDIDATES: dict[str, dict[str, Any]] = {
    SERIAL: {"policy": Single()},
    "serial, a lane's threads": {"policy": Single(narrow=True)},
    "list": {"policy": List()},
    "spread": {"policy": Spread()},
    "spread finely": {"policy": Spread(), "grain": 1e-9},
}
"""What `tune` compares: fields of a spec, by the name that a report shows."""

SCRIPTED: dict[str, Any] = {"compile_tasks": "torchscript"}
"""What it tries on the fastest of them then, and on the serial plan: the same kernels without Python between them."""

DOUBTFUL = 1.5
"""A predicted gain, or loss, up to this factor may be an error of the prediction."""


def tuned(model: nn.Module, machine: Machine, spec: Spec, call: Call | None, make: Make) -> tuple[Spec, tuple[Tried, ...]]:
    """The spec whose plan is the fastest on a call, of a few that differ in who places and how finely; and all that ran.

    Args:
        model: the model; left as it was.
        machine: its lanes.
        spec: what was asked for besides.
        call: the example.
        make: gives the programs of the model under a spec, of which none is made.

    Raises:
        SpecError: there is no example call, or the machine has several devices.
    """
    if call is None:
        raise SpecError("tune=True runs plans on an example call; give example_inputs")
    if len({device.torch_device for device in machine.devices}) > 1:
        names = ", ".join(device.name for device in machine.devices)
        raise SpecError(f"tune=True compares plans whose state lies in one place, and the devices are {names}; name one device")
    race = _Race(model, spec, call, make)
    race.run(CANDIDATES)
    if not race.seconds:
        return spec, ()
    if spec.compile_tasks is None and spec.backward == "autograd" and machine.lanes[0].kind == "cpu":
        kept = dict.fromkeys((SERIAL, race.best()))
        again = {name: race.choices[name] for name in kept}
        race.run(again | {f"{name}, scripted": choices | SCRIPTED for name, choices in again.items()})
    return spec.model_copy(update=race.choices[race.best()]), race.tried()


class _Race:
    """Plans that are run on a call, side by side.

    Args:
        model: the model; left as it was.
        spec: what is asked for besides.
        call: the example.
        make: gives the programs of the model under a spec, of which none is made.
    """

    def __init__(self, model: nn.Module, spec: Spec, call: Call, make: Make) -> None:
        self.model, self.spec, self.make = model, spec, make
        tensors = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in call.tensors]
        self.args, self.kwargs = call.fill(tensors)
        self.choices: dict[str, dict[str, Any]] = {}
        self.plans: dict[str, Plan] = {}
        self.ways: dict[str, Callable[[], object]] = {}
        self.seconds: dict[str, float] = {}

    def run(self, candidates: Mapping[str, dict[str, Any]]) -> None:
        """Run the plans of some candidates in turns. Two that are the same are one."""
        with state_kept(self.model):
            for name in candidates:
                if name not in self.ways:
                    self._add(name, candidates[name])
            self.seconds |= measured({name: self.ways[name] for name in candidates if name in self.ways})

    def _add(self, name: str, choices: dict[str, Any]) -> None:
        programs = self.make(self.spec.model_copy(update=choices))
        programs("forward", self.args, self.kwargs)
        plan = programs.plan
        if plan is not None and _identity(plan, choices) not in (
            _identity(self.plans[each], self.choices[each]) for each in self.plans
        ):
            self.choices[name], self.plans[name] = choices, plan
            self.ways[name] = partial(programs, "forward", self.args, self.kwargs)

    def best(self) -> str:
        """The fastest so far. The serial plan is taken unless another one is clearly faster."""
        return min(self.seconds, key=lambda name: self.seconds[name] * (1 if name == SERIAL else MATTERS))

    def tried(self) -> tuple[Tried, ...]:
        """All that ran."""
        return tuple(Tried(name, self.plans[name].makespan or 0.0, each) for name, each in self.seconds.items())


def _identity(plan: Plan, choices: Mapping[str, Any]) -> tuple[object, ...]:
    """What tells plans apart that run differently."""
    return str(plan.program), tuple(plan.placement.threads), choices.get("compile_tasks")


def is_doubtful(programs: Programs, spec: Spec) -> bool:
    """Whether a plan of `Auto` for lanes of one device is too close to another to tell without running both."""
    named = spec.policy.get("name") if isinstance(spec.policy, Mapping) else spec.policy
    plan = programs.plan
    if named != "auto" or plan is None or len(programs.devices) > 1 or len(programs.machine.lanes) < 2 or not plan.makespan:
        return False
    return 1 / DOUBTFUL < (plan.serial or 0.0) / plan.makespan < DOUBTFUL
