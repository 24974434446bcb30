"""A plan run on devices that are not there: PyTorch's own check that no op mixes two of them.

Under `FakeTensorMode` devices exist that the machine does not have, and an op whose inputs lie on two of them raises. So a
laptop can let a plan for eight GPUs run through, op by op, with its parameters where the plan puts them. Some ops (indexing,
convolutions, batch norm in training) ask for the device's guard even then, and a CPU build has none for CUDA; it has one for
torch's lazy backend. So ``lazy:3`` stands in for ``cuda:3``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from partitioner.backends.reference import Reference
from partitioner.ir.plan import Plan, state_devices


def run_on_fake_devices(plan: Plan, arguments: Sequence[Any]) -> list[Any]:
    """The graph's results as fake tensors, on the devices where the plan leaves them; no kernel runs.

    Raises:
        FakeTensorDeviceMismatchError, RuntimeError: an op's inputs lie on two devices.
    """
    plan = elsewhere(plan, stand_in)
    devices, states, values = state_devices(plan), plan.graph.states, plan.program.by_name
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        placed = []
        for name, value in zip(plan.graph.arguments, arguments, strict=True):
            home = devices[states[name]] if name in states else values[name].torch_device
            placed.append(fake.from_tensor(value.detach()).to(home) if isinstance(value, torch.Tensor) else value)
        return Reference(plan)(placed)


def stand_in(device: str) -> str:
    """The device that stands in for an accelerator: ``lazy:3`` for ``cuda:3``."""
    return device if device == "cpu" else f"lazy:{torch.device(device).index or 0}"


def elsewhere(plan: Plan, stand_in: Callable[[str], str]) -> Plan:
    """The plan with each torch device replaced by what stands in for it."""

    def moved(each: Any) -> Any:
        return replace(each, torch_device=each.torch_device and stand_in(each.torch_device))

    machine = replace(plan.machine, devices=tuple(map(moved, plan.machine.devices)))
    program = replace(plan.program, lanes=tuple(map(moved, plan.program.lanes)), values=tuple(map(moved, plan.program.values)))
    return replace(plan, machine=machine, program=program)
