"""What one op does, told by calling it once on fake tensors under a dispatch mode.

What an op writes, whether it draws random numbers and how much work it is, is told by the ATen ops that it comes down to: one
for a convolution, hundreds for a recurrent layer. No memory is used and no kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from partitioner.frontend.analysis.static import draws, mutated_arguments
from partitioner.frontend.analysis.work import work_of
from partitioner.ir.graph import NOTHING, Work
from partitioner.model.fakes import empty_like, layout_of, number_of, tensors_in
from partitioner.model.node import call_node, fill
from partitioner.model.state import attribute
from partitioner.model.storage import storage_key, tensor_bytes

Found = TypeVar("Found")


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects, over the ops dispatched since `reset`, the storages written, randomness, and work."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        """Forget."""
        self.written: list[Any] = []
        self.random = False
        self.work = NOTHING

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = isinstance(func, torch._ops.OpOverload)
        written = [leaf for value in mutated_arguments(func, args, kwargs) for leaf in tensors_in(value)] if known else []
        self.written += map(storage_key, written)
        result = func(*args, **kwargs)
        if known:
            self.written += map(storage_key, written)  # an op that gives a tensor another storage has written to both
            if draws(func, args, kwargs):
                self.random = True
            if func.namespace != "prim" and not func.is_view:
                touched = sum(int(tensor_bytes(tensor)) for tensor in tensors_in((args, kwargs, result)))
                self.work = self.work.also(work_of(func, args, kwargs, result, touched))
        return result


@dataclass(frozen=True)
class Seen:
    """What one look at an op tells: which of its tensor arguments it writes, by number; randomness; work."""

    written: frozenset[int]
    random: bool
    work: Work


class Looks:
    """Looks at ops, at each distinct one once."""

    def __init__(self) -> None:
        self.known: dict[Any, Seen | None] = {}
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.watch = Watch()

    def at(self, node: torch.fx.Node, form: Any) -> Seen | None:
        """What a call of ``node`` does; ``None`` if it cannot be called on fakes.

        Args:
            node: whose arguments have fakes.
            form: what tells the call from others that are not equal to it.
        """
        return remembered(self.known, (node.target, form), lambda: self.look(node))

    def look(self, node: torch.fx.Node) -> Seen | None:
        """Call ``node`` on fresh fakes; but for an assertion of torch's on sizes that ops compute, for here they are others.

        That would fail, and torch would write to stderr that it did.
        """
        if node.target is torch.ops.aten._assert_scalar.default:
            return None
        given: list[torch.Tensor] = []

        def fresh(source: torch.fx.Node) -> Any:
            value = tree_map(_fresh, value_of(source))
            given.extend(tensors_in(value))
            return value

        self.watch.reset()
        try:
            with torch.no_grad(), self.fake:
                args, kwargs = tree_map(number_of, fill((node.args, node.kwargs), fresh))
                number = {storage_key(tensor): index for index, tensor in enumerate(given)}
                counted = [tensor for tensor in given if not tensor.is_inference()]
                increment_version(counted)
                with self.watch:
                    call_node(node, args, kwargs)
                lowered = (storage_key(each) for each in counted if each._version == 0)  # as after `tensor.data = other`
                found = map(number.get, (*self.watch.written, *lowered))
                return Seen(frozenset(index for index in found if index is not None), self.watch.random, self.watch.work)
        except Exception:  # a fake kernel may raise anything; the static table knows something of every op
            return None


def remembered(known: dict[Any, Found], key: Any, make: Callable[[], Found]) -> Found:
    """What ``make`` gives, made once for each key; anew each time, where something in the key cannot be hashed."""
    try:
        if key not in known:
            known[key] = make()
        return known[key]
    except TypeError:
        return make()


def form_of(value: Any) -> Any:
    """What tells a value from others on which an op may do something else. Of a tensor, its kind and shape."""
    if isinstance(value, torch.Tensor):
        form = layout_of(value) if value.layout is torch.strided else (tuple(map(number_of, value.shape)), value.layout)
        return *form, value.dtype, value.device
    if isinstance(value, tuple | list):
        return type(value), *map(form_of, value)
    if isinstance(value, dict):
        return dict, *((key, form_of(item)) for key, item in value.items())
    value = number_of(value)
    return type(value), str(value) if isinstance(value, float | complex) else value


def _fresh(leaf: Any) -> Any:
    """A new fake like ``leaf``, with sizes as numbers."""
    return empty_like(leaf) if isinstance(leaf, torch.Tensor) else number_of(leaf)


def value_of(node: torch.fx.Node) -> Any:
    """What a node stands for: a fake tensor, or the body of an op."""
    if node.op != "get_attr":
        return node.meta.get("example_value")
    return attribute(node.graph.owning_module, str(node.target))
