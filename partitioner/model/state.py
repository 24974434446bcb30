"""The state of a model: parameters, buffers and tensor attributes by qualified name, as the module has it now."""

from __future__ import annotations

import copy as copying
from typing import Any

import torch
from torch import nn

from partitioner.errors import InputError
from partitioner.model.storage import storage_bytes, storage_key, tensor_bytes


def attribute(root: object, path: str, *default: Any) -> Any:
    """The attribute of a module, or of a module in it, by qualified name.

    Raises:
        AttributeError: there is none, and no default.
    """
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part, *default)
    return value


def sizes(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """What tells a tensor's storage from others; bytes of the tensor and of the storage; elements that the storage holds."""
    kept = storage_bytes(tensor)
    return storage_key(tensor), tensor_bytes(tensor), kept, kept // tensor.element_size()


def all_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter of a module by qualified name, tied ones under each: also those that its class does not tell of."""
    return dict(nn.Module.named_parameters(module, remove_duplicate=False))


def all_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Likewise, every parameter and buffer."""
    return {**all_parameters(module), **dict(nn.Module.named_buffers(module, remove_duplicate=False))}


def lies_on_meta(module: nn.Module) -> bool:
    """Whether parameters or buffers of a module have no values."""
    return any(tensor.is_meta for tensor in all_state(module).values())


def only_device(module: nn.Module) -> str | None:
    """The torch device of all parameters, buffers and tensors in attributes of modules; ``None`` if there are several.

    Where there are no tensors that is the CPU.
    """
    plain = (value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor))
    devices = {str(tensor.device) for tensor in (*all_state(module).values(), *plain)} or {"cpu"}
    return devices.pop() if len(devices) == 1 else None


def is_of_several_devices(error: BaseException) -> bool:
    """Whether an op refused tensors of several devices, which torch says in words alone; the latter ones in torch 2.11."""
    return "same device" in str(error) or "different devices" in str(error)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy.

    Raises:
        InputError: something in the model cannot be copied.
    """
    try:
        with torch.inference_mode(False):  # tensors that are made under it can never be trained
            return copying.deepcopy(model)
    except Exception as error:  # whatever lies in the model may refuse
        raise InputError(
            f"{type(model).__name__} cannot be copied. {type(error).__name__}: {error}\n"
            "Leave out copy=True, and the model itself is partitioned; or build it again."
        ) from error
