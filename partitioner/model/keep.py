"""A model, left as it was: whatever its forward changes while it is traced and compared is put back.

A forward may change what the model holds (parameters, buffers, caches, counters, lists), what its class or its defaults hold, a
list in a global, what its closure stands for, and generators of random numbers. All that can be reached from the model is
looked at, and what can be changed in place is copied, one level deep for each container.
"""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO, StringIO
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from partitioner.model.functions import bindings, reached, users_function, with_attributes
from partitioner.model.storage import parts

LARGEST = 2**28
"""Bytes of parameters up to which they are copied: all of a large model would take as much memory again."""

MOST = 100_000
"""Objects that are looked at."""

Path = tuple[Any, ...]
"""Where something lies: the path of what holds it, and the key under which it does; of the model itself, ``()``."""

_MISSING = object()
_CLOSED = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, type, ModuleType, CodeType)
_PLAIN = frozenset({str, int, float, bool, type(None)})
"""The most frequent of them, told by their exact type."""

_CONTAINERS = (OrderedDict, dict, list, set, deque)
"""Containers by whose own methods items are read and put back: a user's subclass may do something of its own."""

_CACHE = type(cache(len))
"""A function with a cache."""

_BETWEEN = frozenset("threading _thread queue _queue concurrent multiprocessing asyncio logging".split())
"""Modules whose objects stand between threads: put back, one would wake or block a thread that the model knows nothing of."""

_CODE = (FunctionType, MethodType, BuiltinFunctionType)


@contextmanager
def state_kept(module: nn.Module, *arguments: Any, tensors: bool = True) -> Iterator[list[str]]:
    """Put back what is changed inside of the block.

    Args:
        module: whose state.
        arguments: what is to be kept beside it: the arguments of a call.
        tensors: whether values of tensors are copied too; otherwise nothing that takes memory is.

    Yields:
        A list that holds, when the block has ended, the names of what was changed and is no tensor.
    """
    kept, changed = _Kept(tensors), list[str]()
    kept.look(module, arguments)
    grad, generator = torch.is_grad_enabled(), torch.get_rng_state()
    python, numbers = random.getstate(), np.random.get_state()
    try:
        yield changed
    finally:
        torch.set_grad_enabled(grad)
        torch.set_rng_state(generator)
        random.setstate(python)
        np.random.set_state(numbers)
        changed += kept.restore()


class _Kept:
    """What was found, and how it was."""

    def __init__(self, tensors: bool) -> None:
        self.tensors = tensors
        self.seen: dict[int, Any] = {}  # holds what was seen, so that no identity is given twice
        self.containers: list[tuple[Path, Any, Any]] = []
        self.iterators: list[tuple[dict[Any, Any], dict[Any, Any], Any]] = []
        self.undo: list[Callable[[], None]] = []

    def look(self, root: nn.Module, arguments: tuple[Any, ...]) -> None:
        small = sum(parameter.nbytes for parameter in root.parameters() if not parameter.is_meta) <= LARGEST
        waiting: deque[tuple[Path, Any]] = deque([((), root), ((), arguments)])
        while waiting and len(self.seen) < MOST:
            path, value = waiting.popleft()
            if type(value) in _PLAIN or id(value) in self.seen or isinstance(value, _CLOSED) or _stands_between(value):
                continue
            self.seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                if self.tensors and not value.is_meta and (small or not isinstance(value, nn.Parameter)):
                    self.undo.append(_tensor_undo(value))
            elif not self._has_state(value):
                self._keep(path, value)
                if len(self.seen) + len(waiting) < MOST:
                    waiting.extend(self._inside(path, value))

    def _has_state(self, value: Any) -> bool:
        """Keep the state of what has neither items nor attributes: generators of random numbers, buffers, streams, caches."""
        if isinstance(value, random.Random):
            state = value.getstate()
            self.undo.append(lambda: value.setstate(state))
        elif isinstance(value, np.random.Generator):
            now = value.bit_generator.state
            self.undo.append(lambda: setattr(value.bit_generator, "state", now))
        elif isinstance(value, np.random.RandomState):
            drawn = value.get_state()
            self.undo.append(lambda: value.set_state(drawn))
        elif isinstance(value, torch.Generator):
            tensor = value.get_state()
            self.undo.append(lambda: (value.set_state(tensor), None)[1])
        elif isinstance(value, bytearray | array):
            items: Any = value[:]
            self.undo.append(lambda: value.__setitem__(slice(None), items))
        elif type(value) in (BytesIO, StringIO) and not value.closed:
            self.undo.append(_stream_undo(value))
        elif type(value) is _CACHE:
            if not any(value.cache_info()[:2]):  # one that was asked before keeps what is new, too
                self.undo.append(value.cache_clear)
        else:
            return False
        return True

    def _keep(self, path: Path, value: Any) -> None:
        """Keep a value, if it can be changed. An iterator cannot be put back: what is taken from it is given once more."""
        before = len(self.containers)
        if isinstance(value, _CONTAINERS):
            items = _methods(value)
            self.containers.append(
                (path, value, dict(items.items(value)) if isinstance(value, dict) else list(items.__iter__(value)))
            )
        held = _attributes(value)
        if held is not None:
            self.containers.append((path, held, dict(held)))
        for live, then in [(live, then) for _, live, then in self.containers[before:] if isinstance(live, dict)]:
            for key in [key for key, item in then.items() if _is_iterator(item)]:
                live[key] = _Taken(then[key])
                self.iterators.append((live, then, key))

    def _inside(self, path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
        """What lies in a value, and where."""
        if isinstance(value, _CODE):
            if function := users_function(value):
                self.undo.extend(bindings(function))
                self.containers.extend((path, vars(one), dict(vars(one))) for one in with_attributes(function))
                yield from ((((), name), item) for name, item in reached(function, (*_CONTAINERS, _CACHE)))
            return
        if isinstance(value, (*_CONTAINERS, tuple, frozenset)):
            items = _methods(value)
            inside = items.items(value) if isinstance(value, dict) else enumerate(items.__iter__(value))
            yield from (((path, key), item) for key, item in inside)
        held = _attributes(value) or {}
        yield from (((path, key), item) for key, item in held.items() if type(item) not in _PLAIN)
        if isinstance(value, nn.Module):
            yield from self._of_class(type(value))

    def _of_class(self, kind: type) -> Iterator[tuple[Path, Any]]:
        """Data that a user's class holds for all of its modules, and what its forward can reach."""
        for owner in kind.__mro__:
            if id(owner) in self.seen or (owner.__module__ or "").startswith(("torch.", "builtins")):
                continue
            self.seen[id(owner)] = owner
            spoken_of = {"forward", *getattr(getattr(owner.__dict__.get("forward"), "__code__", None), "co_names", ())}
            for key, value in list(vars(owner).items()):
                if key == "_partitioner_programs" or (isinstance(value, FunctionType) and key not in spoken_of):
                    continue  # other methods are not called, for all we know
                if isinstance(value, int | float | str | type(None)) and not key.startswith("__"):
                    self.undo.append(_attribute_undo(owner, key, value))
                yield ((), f"{owner.__name__}.{key}"), value

    def restore(self) -> list[str]:
        """Put everything back; the names of what had changed."""
        for live, then, key in self.iterators:
            if isinstance(taken := live.get(key), _Taken):
                live[key] = then[key] = taken.whole()
        changed = [_name(path) + key for path, live, then in self.containers for key in _refill(live, then)]
        for undo in reversed(self.undo):
            undo()
        return sorted({name.lstrip(".") for name in changed})


class _Taken:
    """Stands for an iterator, and notes what is taken from it."""

    __slots__ = ("items", "iterator")

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator, self.items = iterator, list[Any]()

    def __iter__(self) -> _Taken:
        return self

    def __next__(self) -> Any:
        item = next(self.iterator)
        self.items.append(item)
        return item

    def whole(self) -> Iterator[Any]:
        """The iterator, with what was taken from it."""
        return chain(self.items, self.iterator) if self.items else self.iterator


def _is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of Python's own, a generator among them, whose place is no attribute."""
    return isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools")


def _name(path: Path) -> str:
    """A qualified name; the dictionaries that modules keep their parts in are no part of it."""
    keys: list[str] = []
    while path:
        path, key = path
        keys += [] if key in ("_parameters", "_buffers", "_modules") else [f".{key}"]
    return "".join(reversed(keys))


def _stands_between(value: Any) -> bool:
    """Whether a value is a lock, an event, a queue or a log."""
    return (type(value).__module__ or "").partition(".")[0] in _BETWEEN


def _attributes(value: Any) -> dict[str, Any] | None:
    """The dictionary of an object's attributes, if it has one that may be looked at."""
    held = None if isinstance(value, (*_CODE, torch.jit.ScriptModule)) else getattr(value, "__dict__", None)
    return held if isinstance(held, dict) else None


def _methods(container: Any) -> Any:
    """The class whose methods read and set the items of a container, and do nothing else."""
    return next(kind for kind in (*_CONTAINERS, tuple, frozenset) if isinstance(container, kind))


def _refill(live: Any, then: Any) -> list[str]:
    """Put old items back into a container; what had changed: keys of a dictionary, or the whole of another one."""
    items = _methods(live)
    if isinstance(live, dict):
        now = dict(items.items(live))
        changed = [key for key in {**then, **now} if now.get(key, _MISSING) is not then.get(key, _MISSING)]
        for key in now.keys() - then.keys():
            items.__delitem__(live, key)
        left = filter(then.__contains__, now)
        whole = not then.keys() <= now.keys() or not all(one is other for one, other in zip(left, then, strict=True))
        for key in then if whole else filter(then.__contains__, changed):
            if whole:
                items.pop(live, key, None)  # or it would stay in the place where it is
            items.__setitem__(live, key, then[key])
        return [f".{key}" for key in changed if not _equal(now.get(key, _MISSING), then.get(key, _MISSING))]
    old = list(items.__iter__(live))
    if len(old) == len(then) and all(one is other for one, other in zip(old, then, strict=True)):
        return []
    items.clear(live)
    items.update(live, then) if isinstance(live, set) else items.extend(live, then)
    return [] if len(old) == len(then) and all(map(_equal, old, then)) else [""]


def _equal(one: Any, other: Any) -> bool:
    """Whether two things that are not the same object are equal. Tensors and the user's own types are not known to be."""
    return type(one) is type(other) and isinstance(one, int | float | str | tuple | bytes) and one == other


def _stream_undo(stream: Any) -> Callable[[], None]:
    written, place = stream.getvalue(), stream.tell()

    def undo() -> None:
        stream.seek(0)
        stream.truncate()
        stream.write(written)
        stream.seek(place)

    return undo


def _attribute_undo(owner: Any, key: str, value: Any) -> Callable[[], None]:
    def undo() -> None:
        if vars(owner).get(key, _MISSING) is not value:
            setattr(owner, key, value)

    return undo


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written; one that was made under inference mode does not know."""
    return -1 if tensor.is_inference() else tensor._version


def _tensor_undo(tensor: torch.Tensor) -> Callable[[], None]:
    """Puts back a tensor's value, its gradient, and whether it needs one."""
    version, needs, history = _version(tensor), tensor.requires_grad, tensor.grad_fn
    alias, value, grad = tensor.detach(), tensor.detach().clone(), tensor.grad if tensor.is_leaf else None
    grads = None if grad is None else grad.detach().clone()

    def undo() -> None:
        with torch.no_grad():
            if tensor.grad_fn is not history:  # what was written to it had a history
                tensor.detach_()
            if tensor.layout is torch.strided and (tensor.shape != alias.shape or tensor.data_ptr() != alias.data_ptr()):
                tensor.data = alias
            if _version(tensor) != version or not all(map(torch.equal, parts(alias), parts(value))):
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
