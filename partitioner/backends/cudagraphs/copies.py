"""What passes between a caller and the memory of a CUDA graph: results become the caller's, related as eager would give them.

an argument that is returned       the caller's own argument
a view of an argument              the same view of the caller's
results in one piece of memory     views of one copy
anything else                      a copy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from partitioner.backends.cudagraphs.capturing import Cuda
from partitioner.backends.nodes import results
from partitioner.ir.plan import Plan
from partitioner.model.storage import is_dense, storage_key


class Copies:
    """How the results of a captured program become the caller's.

    Args:
        plan: of the program.
        values: the arguments that it was captured with: memory of the graph, and state.
        found: its results then.
        elsewhere: positions of the arguments that a caller has on another device.

    Attributes:
        shares: whether results lie in the memory of an argument or of each other.
    """

    def __init__(self, plan: Plan, values: Sequence[Any], found: Sequence[Any], elsewhere: set[int]) -> None:
        self.device = plan.machine.lanes[0].torch_device
        self.constants = [None if isinstance(value, Tensor) else value for value in found]
        self.given: dict[int, int] = {}
        self.views: dict[int, tuple[int, Tensor, int]] = {}
        self.sources: list[Tensor] = []
        self.own_results: list[tuple[int, int, Tensor | None]] = []
        positions = {name: position for position, name in enumerate(plan.graph.arguments)}
        tensors = [n for n, value in enumerate(values) if isinstance(value, Tensor) and n not in elsewhere]
        owners = {storage_key(values[n]): n for n in tensors}
        groups: dict[int, list[int]] = {}
        for number, (node, value) in enumerate(zip(results(plan.graph), found, strict=True)):
            position = positions.get(getattr(node, "name", ""))
            owner = owners.get(storage_key(value)) if isinstance(value, Tensor) else None
            if owner is not None and value is values[owner]:  # as an op gives it back that writes in place
                self.given[number] = owner
            elif position is not None and position not in elsewhere:
                self.given[number] = position
            elif owner is not None:
                self.views[number] = (owner, value.detach(), _start(value) - _start(values[owner]))
            elif isinstance(value, Tensor):
                groups.setdefault(storage_key(value), []).append(number)
        for group in groups.values():
            self._add(group, [found[number].detach() for number in group])
        self.shares = bool(self.views) or any(len(group) > 1 for group in groups.values())

    def _add(self, group: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Results in one piece of memory."""
        if len(tensors) == 1 and _fills_its_memory(tensors[0]):
            self.own_results.append((group[0], len(self.sources), None))
            self.sources.append(tensors[0])
            return
        for number, tensor in zip(group, tensors, strict=True):
            self.own_results.append((number, len(self.sources), tensor))
        self.sources.append(_whole_memory(tensors[0]))

    def own(self, cuda: Cuda, arguments: Sequence[Any]) -> list[Any]:
        """The results of the last replay, for the caller to keep.

        Args:
            cuda: who allocates and copies.
            arguments: of the call.
        """
        found = list(self.constants)
        for number, position in self.given.items():
            found[number] = arguments[position]
        for number, (position, view, offset) in self.views.items():
            found[number] = _within(arguments[position], view, _start(arguments[position]) + offset)
        targets = [cuda.room(source, self.device) for source in self.sources]
        cuda.copy(targets, self.sources)
        for number, source, part in self.own_results:
            found[number] = targets[source] if part is None else _within(targets[source], part, _start(part))
        return found


def _fills_its_memory(tensor: Tensor) -> bool:
    """Whether a copy of a tensor is a copy of its memory."""
    return is_dense(tensor) and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _whole_memory(tensor: Tensor) -> Tensor:
    """All bytes of the piece of memory in which a tensor lies."""
    return tensor.new_empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _start(tensor: Tensor) -> int:
    """Bytes in front of a tensor in its memory."""
    return int(tensor.storage_offset()) * tensor.element_size()


def _within(memory: Tensor, view: Tensor, start: int) -> Tensor:
    """A tensor of the form of ``view`` in the memory of another one, so many bytes from its beginning."""
    within = view.new_empty(0).set_(memory.untyped_storage(), start // view.element_size(), view.size(), view.stride())
    return within.conj() if view.is_conj() else torch._neg_view(within) if view.is_neg() else within
