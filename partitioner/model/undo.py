"""How one thing is put back as it is now: a tensor, a generator of random numbers, an array, a stream in memory, a cache."""

from __future__ import annotations

import ctypes
import random
from array import array
from collections.abc import Callable
from functools import partial
from io import BytesIO, StringIO
from typing import Any

import numpy as np
import torch

from partitioner.model.functions import CACHE
from partitioner.model.storage import parts, set_version, storage_key, version_of

STATEFUL = (
    *(random.Random, np.random.Generator, np.random.RandomState, torch.Generator),
    *(np.ndarray, bytearray, array, BytesIO, StringIO, CACHE),
    *(ctypes.Array, ctypes.Structure, ctypes.Union, ctypes._SimpleCData),
)
"""What has a state that lies neither in items nor in attributes."""


def state_undo(value: Any) -> Callable[[], object]:
    """Puts back the state of one of `STATEFUL`."""
    match value:
        case random.Random():
            return partial(value.setstate, value.getstate())
        case np.random.Generator():
            return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
        case np.random.RandomState():
            return partial(value.set_state, value.get_state())
        case torch.Generator():
            return partial(value.set_state, value.get_state())
        case np.ndarray() if value.flags.writeable:
            return partial(np.copyto, value, value.copy())
        case bytearray() | array():
            return partial(value.__setitem__, slice(None), value[:])
        case ctypes.Array() | ctypes.Structure() | ctypes.Union() | ctypes._SimpleCData():
            return partial(ctypes.memmove, ctypes.addressof(value), bytes(value), ctypes.sizeof(value))
        case BytesIO() | StringIO() if not value.closed:
            return stream_undo(value)
        case CACHE() if not any(value.cache_info()[:2]):  # one that was asked before keeps what is new, too
            return value.cache_clear
    return lambda: None


def stream_undo(stream: Any) -> Callable[[], None]:
    """Puts back what a stream in memory holds, and its place."""
    written, place = stream.getvalue(), stream.tell()

    def undo() -> None:
        stream.seek(0)
        stream.truncate()
        stream.write(written)
        stream.seek(place)

    return undo


def attributes_undo(tensor: torch.Tensor) -> Callable[[], None]:
    """Puts back a tensor's attributes, but for the marks that torch's tracer sets on it."""
    held = vars(tensor)
    then = dict(held)

    def undo() -> None:
        for name in [name for name in {**then, **held} if not name.startswith("_dynamo")]:
            if name in then:
                held[name] = then[name]
            else:
                del held[name]

    return undo


def tensor_undo(tensor: torch.Tensor) -> Callable[[], None]:
    """Puts back a tensor's value, its gradient, and whether it needs one."""
    inner = held_inside(tensor)
    undos = [*map(tensor_undo, inner)] if inner else [_value_undo(tensor)]
    undos.append(_gradient_undo(tensor))

    def undo() -> None:
        with torch.no_grad():
            for each in undos:
                each()

    return undo


def held_inside(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that one consists of which is made of others: nested, or of a class that wraps some.

    Example:
        >>> nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        >>> tuple(held_inside(nested)[0].shape)
        (5,)
    """
    if hasattr(tensor, "__tensor_flatten__"):
        held = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        return [each for each in held if isinstance(each, torch.Tensor)]  # a DTensor names its mesh, too
    return [tensor.values()] if tensor.is_nested else []


def _value_undo(tensor: torch.Tensor) -> Callable[[], None]:
    version, history, alias, value = version_of(tensor), tensor.grad_fn, tensor.detach(), _cloned(tensor)

    def undo() -> None:
        if tensor.grad_fn is not history:  # what was written to it had a history
            tensor.detach_()
        if tensor.layout is torch.strided and (tensor.shape != alias.shape or tensor.data_ptr() != alias.data_ptr()):
            tensor.data = alias
        if value is not None and (version_of(tensor) != version or not _equal(alias, value)):
            _fill(tensor, alias, value)
            set_version(tensor, version)

    return undo


def _fill(tensor: torch.Tensor, alias: torch.Tensor, value: torch.Tensor) -> None:
    """Give a tensor, and the parts that it had, an old value; torch may have made the parts of a sparse one anew."""
    pairs = list(zip(parts(alias), parts(value), strict=True))
    for part, then in pairs:
        if part.shape == then.shape:
            part.copy_(then)
    moved = storage_key(tensor) != storage_key(alias) or any(part.shape != then.shape for part, then in pairs)
    if moved and len(pairs) > 1:
        torch.resize_as_sparse_(tensor, value).copy_(value)


def _gradient_undo(tensor: torch.Tensor) -> Callable[[], None]:
    needs, grad = tensor.requires_grad, tensor.grad if tensor.is_leaf else None
    grads = None if grad is None else grad.detach().clone()

    def undo() -> None:
        if tensor.is_leaf and tensor.requires_grad != needs:
            tensor.requires_grad_(needs)
        if tensor.is_leaf and tensor.grad is not grad:
            tensor.grad = grad
        if grad is not None and grads is not None:
            grad.copy_(grads)

    return undo


def _cloned(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy of a tensor's value; ``None`` of the few kinds that torch cannot copy."""
    try:
        return tensor.detach().clone()
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one kind have one value; of the few kinds that torch cannot compare, what versions say counts."""
    try:
        return all(map(torch.equal, parts(one), parts(other)))
    except (RuntimeError, NotImplementedError, TypeError):
        return True
