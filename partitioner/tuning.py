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
    "list": {"policy": List()},
    "spread": {"policy": Spread()},
    "spread finely": {"policy": Spread(), "grain": 1e-9},
}
"""What `tune` compares: fields of a spec, by the name that a report shows."""

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
    args, kwargs = call.fill([tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in call.tensors])
    ways: dict[str, Callable[[], object]] = {}
    plans: dict[str, Plan] = {}
    with state_kept(model):
        for name, choices in CANDIDATES.items():
            programs = make(spec.model_copy(update=choices))
            programs("forward", args, kwargs)
            plan = programs.plan
            if plan is not None and str(plan.program) not in {str(other.program) for other in plans.values()}:
                plans[name], ways[name] = plan, partial(programs, "forward", args, kwargs)
        seconds = measured(ways)
    tried = tuple(Tried(name, plans[name].makespan or 0.0, each) for name, each in seconds.items())
    if not tried:
        return spec, ()
    best = min(tried, key=lambda each: each.measured * (1 if each.name == SERIAL else MATTERS))
    return spec.model_copy(update=CANDIDATES[best.name]), tried


def is_doubtful(programs: Programs, spec: Spec) -> bool:
    """Whether a plan of `Auto` for lanes of one device is too close to another to tell without running both."""
    named = spec.policy.get("name") if isinstance(spec.policy, Mapping) else spec.policy
    plan = programs.plan
    if named != "auto" or plan is None or len(programs.devices) > 1 or len(programs.machine.lanes) < 2 or not plan.makespan:
        return False
    return 1 / DOUBTFUL < (plan.serial or 0.0) / plan.makespan < DOUBTFUL
