"""What one op does in terms of ATen's: the calls that torch makes for it, as seen on fakes.

linear(x, w, b)   ->   view(x)  t(w)  addmm(b, ..)  view(..)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from partitioner.ir.sharding import Placement


@dataclass(frozen=True)
class Slot:
    """A tensor in a trace.

    Args:
        number: which one.
        shape: its sizes.
    """

    number: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """A tensor, and how ranks hold it.

    Args:
        shape: of the whole.
        place: how it is held.
    """

    shape: tuple[int, ...]
    place: Placement


@dataclass(frozen=True, eq=False)
class AtenCall:
    """One call of an op of ATen's.

    Args:
        op: the overload.
        args, kwargs: with a `Slot` for each tensor.
        results: a `Slot` for each tensor that it gives, ``None`` for anything else.
    """

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Slot | None, ...]

    @property
    def name(self) -> str:
        """The op's, without namespace and overload."""
        return self.op._schema.name.partition("::")[2]


@dataclass(frozen=True, eq=False)
class AtenTrace:
    """The calls that one op makes, in order.

    Args:
        calls: of ATen.
        inputs: the tensors that were given.
        results: what it gives: a `Slot` for each tensor, other leaves as they are.
    """

    calls: tuple[AtenCall, ...]
    inputs: tuple[Slot, ...]
    results: tuple[Any, ...]


def aten_trace(call: Callable[[], Any], inputs: Sequence[torch.Tensor]) -> AtenTrace:
    """The calls of ATen's that ``call`` makes.

    Args:
        call: works on fakes.
        inputs: the tensors that it works on.
    """
    recorder = _Recorder()
    given = tuple(recorder.slot(tensor) for tensor in inputs)
    with recorder:
        result = call()
    leaves = tuple(recorder.slotted(leaf) for leaf in tree_leaves(result))
    return AtenTrace(tuple(recorder.calls), given, leaves)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes calls down."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[AtenCall] = []
        self.slots: dict[int, tuple[Slot, torch.Tensor]] = {}

    def slot(self, tensor: torch.Tensor) -> Slot:
        """The number of a tensor, which is kept, for another may get its ``id``."""
        if id(tensor) not in self.slots:
            self.slots[id(tensor)] = Slot(len(self.slots), tuple(tensor.shape)), tensor
        return self.slots[id(tensor)][0]

    def slotted(self, leaf: Any) -> Any:
        """A slot for a tensor."""
        return self.slot(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Write a call down."""
        given = tree_map(self.slotted, (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func.namespace != "prim":
            leaves = tuple(self.slotted(each) if isinstance(each, torch.Tensor) else None for each in tree_leaves(result))
            self.calls.append(AtenCall(func, given[0], given[1], leaves))
        return result
