"""State gets to its devices, in place: optimizers and ties that hold it go on holding it. What cannot be spread is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from partitioner.errors import PlacementError
from partitioner.ir.graph import Graph
from partitioner.model.call import sharing
from partitioner.model.storage import storage_key


def move_state(state: Mapping[str, torch.Tensor], devices: Mapping[str, str], default: str) -> None:
    """Move tensors to their devices, in place: optimizers and ties that hold them go on holding them.

    Args:
        state: parameters, buffers and other tensors of a model, by name; one tensor may have several.
        devices: torch device by qualified name.
        default: where everything goes that no op uses.

    Raises:
        PlacementError: torch cannot do that between two kinds of devices, as from a CPU to one that a package of others brings.
    """
    by_storage: defaultdict[int, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for name, tensor in state.items():
        by_storage[storage_key(tensor)].append((name, tensor))
    moves = [
        (members, torch.device(next((devices[name] for name, _ in members if name in devices), default)))
        for members in by_storage.values()
    ]
    for members, wanted in moves:
        _refuse_strange(*members[0], wanted)
    for members, wanted in moves:
        _move_together([tensor for _, tensor in members], wanted)


def _refuse_strange(name: str, tensor: torch.Tensor, wanted: torch.device) -> None:
    """Raise if a tensor cannot be given values that lie on another kind of device."""
    if tensor.device.type == wanted.type or torch._has_compatible_shallow_copy_type(tensor, torch.empty(0, device=wanted)):
        return
    raise PlacementError(
        f"{name} lies on {tensor.device}, and torch cannot put values on {wanted} in its place; move the model there "
        f"first: model.to({str(wanted)!r})"
    )


def _move_together(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Move tensors that share one storage so that they still share one."""
    distinct = {id(tensor): tensor for tensor in tensors}
    if all(tensor.device == device for tensor in distinct.values()):
        return
    with torch.no_grad():
        if len(distinct) == 1:
            (tensor,) = distinct.values()
            _move_one(tensor, tensor.detach().to(device))
            return
        first = next(iter(distinct.values()))
        whole = torch.empty(0, dtype=torch.uint8, device=first.device).set_(first.untyped_storage()).to(device)
        for tensor in distinct.values():
            view = torch.empty(0, dtype=tensor.dtype, device=device)
            _move_one(tensor, view.set_(whole.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()))


def _move_one(tensor: torch.Tensor, moved: torch.Tensor) -> None:
    tensor.data = moved
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(moved.device)


def where_it_lies(state: Mapping[str, torch.Tensor], homes: Mapping[str, str]) -> dict[str, str]:
    """The device name of all state, which later programs take where the first one put it."""
    for key, tensor in state.items():
        if str(tensor.device) not in homes:
            places = ", ".join(homes)
            raise PlacementError(
                f"{key} lies on {tensor.device}, and the module is spread over {places}; move it to one of them"
            )
    return {key: homes[str(tensor.device)] for key, tensor in state.items()}


def staying(homes: Mapping[str, str]) -> Callable[[str, torch.Tensor], bool]:
    """Whether ops go to where a tensor of the model lies, by its name.

    They do to parameters, and to what lies where the first plan put it. What forward has put in the place of a tensor since
    (``self.state = ...``) lies where it was computed, where the weights that it is used with need not lie: it moves to them.

    Args:
        homes: torch device to which it was moved, by name.
    """
    return lambda key, tensor: isinstance(tensor, nn.Parameter) or str(tensor.device) == homes.get(key)


def refuse_shared(graph: Graph, arguments: Sequence[Any]) -> None:
    """Raise if an argument that is no state shares a storage with others, and an op writes it."""
    groups = sharing(arguments, graph.written_arguments)
    if any(graph.arguments[each] not in graph.states for group in groups if len(group) > 1 for each in group):
        refuse_sharing(())


def refuse_sharing(_arguments: Sequence[Any]) -> Sequence[Any]:
    """Raise, for a call whose arguments share what is written."""
    raise PlacementError(
        "arguments of this call share memory that the model writes. On several devices each argument is moved by itself, and "
        "they would share it no more. Pass copies: tensor.clone()."
    )
