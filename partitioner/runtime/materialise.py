"""Weights of a model that was planned on the meta device: each tensor from its safetensors file to the device that wants it.

    model-00001-of-00002.safetensors  embed, layers 0 - 3  -> cuda:0        one file is open at a time; what is read
    model-00002-of-00002.safetensors  layers 4 - 7, head   -> cuda:1        from it does not stay in host memory

All names, shapes and dtypes are compared before anything is read, and the model is changed only once all of it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import nn

from partitioner.errors import SpecError
from partitioner.ir.words import first_lines
from partitioner.model.state import all_state
from partitioner.model.storage import storage_key
from partitioner.runtime.checkpoint import Checkpoint, Stored, checkpoint_at
from partitioner.runtime.computed import computed_buffers
from partitioner.runtime.moving import move_state

MOST_FAULTS = 20
Part = Callable[[Sequence[str], Any], torch.Tensor | None]
"""Reads some of a tensor, of these names, out of what safetensors can slice; ``None`` for all of it."""

DIRECT = ("cpu", "cuda", "mps", "xpu")
"""Kinds of devices that safetensors reads to; to others a tensor goes by way of host memory."""


@dataclass(frozen=True, eq=False)
class Slot:
    """One tensor of a model that is yet without values, and where it belongs.

    Args:
        names: its qualified names; several if it is tied.
        tensor: what stands there now, on the meta device.
        device: torch device that wants it.
        saved: whether a checkpoint of the model holds it: false of a buffer that is not persistent.
    """

    names: tuple[str, ...]
    tensor: torch.Tensor
    device: str
    saved: bool


def materialise(
    model: nn.Module,
    weights: str | PathLike[str],
    devices: Mapping[str, str] | None = None,
    default: str = "cpu",
    only: Container[str] | None = None,
    part: Part | None = None,
) -> None:
    """Give the parameters and buffers of a model that lie on the meta device the values of a checkpoint, in place.

    Args:
        model: built under ``torch.device("meta")``. What is not on the meta device goes to its device with its values.
        weights: a ``.safetensors`` file, the ``.safetensors.index.json`` of several, or the folder that holds them.
        devices: torch device by qualified name, such as `ir.plan.state_devices` of a plan.
        default: where everything goes that has no device there.
        only: qualified names of what is read, where that is not all; the rest of the checkpoint is compared and left alone.
        part: reads a part of a tensor, where that is not all of it.

    Raises:
        SpecError: the checkpoint cannot be read, or does not fit: lists what is missing, left over, or of another shape or
            dtype. The model is left as it was.

    Example:
        >>> import tempfile, safetensors.torch as st
        >>> with torch.device("meta"):
        ...     model = nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     st.save_file({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, f"{folder}/model.safetensors")
        ...     materialise(model, folder)
        >>> model(torch.ones(2)).item()
        2.0
    """
    places = devices or {}
    slots = list(_slots(model, places, default))
    checkpoint = checkpoint_at(weights)
    sources, faults = _sources(slots, checkpoint)
    computed = [slot for slot in slots if not slot.saved and slot not in sources]
    made = computed_buffers(model, {name: slot.device for slot in computed for name in slot.names})
    faults += [
        f"{slot.names[0]} is a buffer that no checkpoint holds, and nothing of the model computes it again"
        for slot in computed
        if slot.names[0] not in made
    ]
    faults += [f"{name} is a tensor in an attribute, which no checkpoint holds" for name in _attributes(model)]
    if faults:
        title = f"{checkpoint.path} does not fit {type(model).__name__}:"
        raise SpecError("\n  ".join([title, *first_lines(faults, MOST_FAULTS)]))
    wanted = [slot for slot in slots if only is None or any(name in only for name in slot.names)]
    found = dict(_read({slot: sources[slot] for slot in wanted if slot in sources}, part))
    _fill(model, {id(slot.tensor): found[slot] if slot in found else made[slot.names[0]] for slot in wanted})
    rest = {name: tensor for name, tensor in all_state(model).items() if not tensor.is_meta}
    move_state(rest, places, default)


def _slots(model: nn.Module, devices: Mapping[str, str], default: str) -> Iterator[Slot]:
    """Each tensor on the meta device once."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    unsaved: set[str] = set()
    for path, module in model.named_modules(remove_duplicate=False):
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.is_meta:
                full = f"{path}.{name}" if path else name
                names.setdefault(id(tensor), []).append(full)
                tensors[id(tensor)] = tensor
                unsaved.update([full] if name in module._non_persistent_buffers_set else [])
    storages: dict[int, int] = {}
    for key, tensor in tensors.items():
        if storages.setdefault(storage_key(tensor), key) != key:
            other = names[storages[storage_key(tensor)]][0]
            raise SpecError(f"{names[key][0]} shares the memory of {other}, which weights from a file would take apart")
        wanted = next((devices[name] for name in names[key] if name in devices), default)
        yield Slot(tuple(names[key]), tensor, wanted, not unsaved.issuperset(names[key]))


def _attributes(model: nn.Module) -> Iterator[str]:
    """Tensors on the meta device that are neither parameters nor buffers, by qualified name."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                yield f"{path}.{name}" if path else name


def _sources(slots: Iterable[Slot], checkpoint: Checkpoint) -> tuple[dict[Slot, Stored], list[str]]:
    """Where the values of each slot stand, and everything that does not fit."""
    sources: dict[Slot, Stored] = {}
    faults: list[str] = []
    known: set[str] = set()
    for slot in slots:
        known.update(slot.names)
        stored = next((checkpoint.tensors[name] for name in slot.names if name in checkpoint.tensors), None)
        if stored is None:
            faults += [f"{slot.names[0]} is missing"] if slot.saved else []
            continue
        sources[slot] = stored
        wanted = tuple(slot.tensor.shape), str(slot.tensor.dtype).removeprefix("torch.")
        if (stored.shape, stored.dtype) != wanted:
            shapes = f"{wanted[1]}{list(wanted[0])} in the model and {stored.dtype}{list(stored.shape)} in {stored.file.name}"
            faults.append(f"{slot.names[0]} is {shapes}")
    faults += [f"{name} is in the checkpoint, and not in the model" for name in checkpoint.tensors if name not in known]
    return sources, faults


def _read(sources: Mapping[Slot, Stored], part: Part | None) -> Iterator[tuple[Slot, torch.Tensor]]:
    """The values, file by file, each straight to its device."""
    from safetensors import safe_open

    files: dict[tuple[Any, str], list[tuple[Slot, Stored]]] = {}
    for slot, stored in sources.items():
        files.setdefault((stored.file, slot.device), []).append((slot, stored))
    for (file, device), members in sorted(files.items(), key=lambda item: (str(item[0][0]), item[0][1])):
        try:
            with safe_open(file, framework="pt", device=device if device.partition(":")[0] in DIRECT else "cpu") as opened:
                for slot, stored in members:
                    some = None if part is None else part(slot.names, opened.get_slice(stored.name))
                    whole = opened.get_tensor(stored.name) if some is None else some
                    yield slot, _own(whole.to(device), slot.tensor if some is None else some)
        except Exception as error:  # the file was replaced, or a device is full: whatever is below raises its own
            raise SpecError(f"{file}: cannot be loaded on {device}: {type(error).__name__}: {error}") from error


def _own(values: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """``values`` in memory of their own, for on a CPU they are a window on the file, and laid out as is ``wanted``."""
    if values.device.type != "cpu" and values.stride() == wanted.stride():
        return values
    return torch.empty_strided(wanted.shape, wanted.stride(), dtype=values.dtype, device=values.device).copy_(values)


def _fill(model: nn.Module, values: Mapping[int, torch.Tensor]) -> None:
    """Put values in the places of the tensors with these ids, wherever those lie; a tie stays one tensor."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for held in tables:
            for name, tensor in held.items():
                if tensor is not None and id(tensor) in values:
                    if id(tensor) not in made:
                        made[id(tensor)] = _like(tensor, values[id(tensor)])
                    held[name] = made[id(tensor)]


def _like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A parameter of the same kind and with the same attributes, or a plain buffer."""
    if not isinstance(tensor, nn.Parameter):
        return values.requires_grad_(tensor.requires_grad)
    made = type(tensor)(values, requires_grad=tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    return made
