"""A plan run on devices that are not there: PyTorch's own check that no op mixes two of them.

Under `FakeTensorMode` devices exist that the machine does not have, and an op whose inputs lie on two of them raises. So a
laptop can let a plan for eight GPUs run through, op by op, with its parameters where the plan puts them. Some ops (indexing,
convolutions, batch norm in training) ask for the device's guard even then, and a CPU build has none for CUDA; it has one for
torch's lazy backend. So ``lazy:3`` stands in for ``cuda:3``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from partitioner.backends.reference import Reference
from partitioner.ir.plan import Plan, state_devices


def run_on_fake_devices(plan: Plan, arguments: Sequence[Any]) -> list[Any]:
    """Run a plan's program with everything on fake devices; no kernel runs and no memory is used.

    Args:
        plan: for any devices, whether they are there or not.
        arguments: values of the graph's placeholders, of which only the metadata is used.

    Returns:
        The graph's results as fake tensors, on the devices where the plan leaves them.

    Raises:
        FakeTensorDeviceMismatchError, RuntimeError: an op's inputs lie on two devices.
    """
    devices, states, values = state_devices(plan), plan.graph.states, plan.program.by_name
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        placed = []
        for name, value in zip(plan.graph.arguments, arguments, strict=True):
            home = devices[states[name]] if name in states else values[name].torch_device
            tensor = isinstance(value, torch.Tensor)
            placed.append(fake.from_tensor(value.detach()).to(stand_in(home)) if tensor else value)
        return Reference(plan, stand_in)(placed)


def stand_in(device: str) -> str:
    """The device that stands in for an accelerator.

    Example:
        >>> stand_in("cuda:3"), stand_in("cpu")
        ('lazy:3', 'cpu')
    """
    wanted = torch.device(device)
    return device if wanted.type == "cpu" else f"lazy:{wanted.index or 0}"
