"""How one thing is put back as it is now: a tensor, a generator of random numbers, an array, a stream in memory, a cache."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Callable
from functools import cache
from io import BytesIO, StringIO
from typing import Any

import numpy as np
import torch

from partitioner.model.storage import parts, version_of

_CACHE = type(cache(len))
"""A function with a cache."""

STATEFUL = (
    *(random.Random, np.random.Generator, np.random.RandomState, torch.Generator),
    *(np.ndarray, bytearray, array, BytesIO, StringIO, _CACHE),
)
"""What has a state that lies neither in items nor in attributes."""


def state_undo(value: Any) -> Callable[[], object]:
    """Puts back the state of one of `STATEFUL`."""
    match value:
        case random.Random():
            state = value.getstate()
            return lambda: value.setstate(state)
        case np.random.Generator():
            now = value.bit_generator.state
            return lambda: setattr(value.bit_generator, "state", now)
        case np.random.RandomState():
            drawn = value.get_state()
            return lambda: value.set_state(drawn)
        case torch.Generator():
            tensor = value.get_state()
            return lambda: value.set_state(tensor)
        case np.ndarray():
            numbers = value.copy() if value.flags.writeable else None
            return lambda: None if numbers is None else np.copyto(value, numbers)
        case bytearray() | array():
            items: Any = value[:]
            return lambda: value.__setitem__(slice(None), items)
        case BytesIO() | StringIO() if not value.closed:
            return stream_undo(value)
        case _CACHE() if not any(value.cache_info()[:2]):  # one that was asked before keeps what is new, too
            return value.cache_clear
    return lambda: None


def process_undo() -> Callable[[], None]:
    """Puts back what belongs to the process or the thread: generators of random numbers, torch's switches, the environment."""
    grad, dtype, threads = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()
    generator, python, numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()
    environment = dict(os.environ)

    def undo() -> None:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(generator)
        random.setstate(python)
        np.random.set_state(numbers)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update({name: text for name, text in environment.items() if os.environ.get(name) != text})

    return undo


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
    version, needs, history = version_of(tensor), tensor.requires_grad, tensor.grad_fn
    alias, value, grad = tensor.detach(), tensor.detach().clone(), tensor.grad if tensor.is_leaf else None
    grads = None if grad is None else grad.detach().clone()

    def undo() -> None:
        with torch.no_grad():
            if tensor.grad_fn is not history:  # what was written to it had a history
                tensor.detach_()
            if tensor.layout is torch.strided and (tensor.shape != alias.shape or tensor.data_ptr() != alias.data_ptr()):
                tensor.data = alias
            if version_of(tensor) != version or not all(map(torch.equal, parts(alias), parts(value))):
                tensor.detach().copy_(value)
                if version >= 0:  # a backward that is still to come asks whether what it has kept was written since
                    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
            if tensor.is_leaf and tensor.requires_grad != needs:
                tensor.requires_grad_(needs)
            if tensor.is_leaf and tensor.grad is not grad:
                tensor.grad = grad
            if grad is not None and grads is not None:
                grad.copy_(grads)

    return undo
