"""A plan run on devices that are not there: PyTorch's own check that no op mixes two of them.

Under `FakeTensorMode` devices exist that the machine does not have, and an op whose inputs lie on two of them raises. So a
laptop can let a plan for eight GPUs run through, op by op, with its parameters where the plan puts them. Some ops (indexing,
convolutions, batch norm in training) ask for the device's guard even then, and a CPU build has none for CUDA; it has one for
torch's lazy backend. So ``lazy:3`` stands in for ``cuda:3``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module

from partitioner.backends.reference import Reference
from partitioner.ir.plan import Plan, state_devices
from partitioner.model.state import all_state, lookup
from partitioner.model.storage import storage_key


def run_on_fake_devices(plan: Plan, module: nn.Module, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Run a plan's program with everything on fake devices; no kernel runs and no memory is used.

    Args:
        plan: for any devices, whether they are there or not.
        module: the model that was planned, wherever its state is; left as it was.
        tensors: graph inputs, of which only the metadata is used.

    Returns:
        The graph's results as fake tensors, on the devices where the plan leaves them.

    Raises:
        FakeTensorDeviceMismatchError, RuntimeError: an op's inputs lie on two devices.
    """
    devices = {name: stand_in(device) for name, device in state_devices(plan).items()}
    tensors = [tensor.detach() for tensor in tensors]  # before the mode, which would ask a tensor for its gradient
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        state = _placed(fake, all_state(module), devices, stand_in(plan.machine.lanes[0].torch_device))
        with _reparametrize_module(module, state), _attributes(fake, module, devices):
            values = plan.program.by_name
            homes = [stand_in(values[name].torch_device) for name in plan.program.inputs]
            inputs = [fake.from_tensor(t).to(home) for t, home in zip(tensors, homes, strict=True)]
            return Reference(plan, stand_in)(module, inputs)


def stand_in(device: str) -> str:
    """The device that stands in for an accelerator.

    Example:
        >>> stand_in("cuda:3"), stand_in("cpu")
        ('lazy:3', 'cpu')
    """
    wanted = torch.device(device)
    return device if wanted.type == "cpu" else f"lazy:{wanted.index or 0}"


def _placed(
    fake: FakeTensorMode, state: Mapping[str, torch.Tensor], devices: Mapping[str, str], default: str
) -> dict[str, torch.Tensor]:
    """Fake state on its devices; what shares a storage goes together."""
    home = {storage_key(state[name]): device for name, device in devices.items() if name in state}
    return {
        name: fake.from_tensor(tensor.detach()).to(home.get(storage_key(tensor), default)) for name, tensor in state.items()
    }


@contextmanager
def _attributes(fake: FakeTensorMode, module: nn.Module, devices: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile, fake tensors for tensor attributes that are neither parameters nor buffers."""
    changed: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        for path, device in devices.items():
            parent, _, name = path.rpartition(".")
            owner = module.get_submodule(parent) if isinstance(lookup(module, path), torch.Tensor) else None
            if owner is not None and isinstance(owner.__dict__.get(name), torch.Tensor):
                changed.append((owner.__dict__, name, owner.__dict__[name]))
                owner.__dict__[name] = fake.from_tensor(owner.__dict__[name]).to(device)
        yield
    finally:
        for attributes, name, tensor in changed:
            attributes[name] = tensor
