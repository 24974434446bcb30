"""A model, left as it was: whatever its forward changes while it is traced and compared is put back.

A forward may change what the model holds (parameters, buffers, caches, counters, lists), what its class or its defaults hold,
what its closure stands for, what lies in globals of which its code speaks, and generators of random numbers. All that can be
reached from the model is looked at, through the user's functions, methods and classes, and what can be changed in place is
copied, one level deep for each container.
"""

from __future__ import annotations

from argparse import Namespace
from collections import ChainMap, Counter, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import local
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from partitioner.model.classes import (
    data_of,
    data_undo,
    has_slots,
    methods_of,
    not_for_tracers,
    owners,
    runs_unasked,
    slots_of,
    slots_undo,
)
from partitioner.model.containers import CONTAINERS, items_of, methods_of_container, refill
from partitioner.model.functions import bindings, names_in, places, reached, used_globals, users_function, wrapped
from partitioner.model.modes import hooks_hidden
from partitioner.model.process import process_undo
from partitioner.model.quiet import quiet
from partitioner.model.storage import tensor_bytes
from partitioner.model.taken import Taken, is_iterator
from partitioner.model.undo import STATEFUL, attributes_undo, state_undo, tensor_undo

LARGEST = 2**28
"""Bytes of parameters up to which they are copied: all of a large model would take as much memory again."""

MOST = 100_000
"""Objects that are looked at."""

Path = tuple[Any, ...] | None
"""Where something lies: the path of what holds it, and the key under which it does; of the model itself, ``()``, and of what
is no part of it, ``None``."""

_VALUES = (str, bytes, int, float, complex)
"""Of these a user's class may be made whose objects have attributes, as the members of an `IntEnum`."""
_CLOSED = (*_VALUES, bool, type(None), torch.dtype, torch.device, ModuleType, CodeType)
_PLAIN = frozenset({str, int, float, bool, type(None)})
"""The most frequent of them, told by their exact type."""

_BETWEEN = frozenset("threading _thread queue _queue concurrent multiprocessing asyncio logging".split())
"""Modules whose objects stand between threads: put back, one would wake or block a thread that the model knows nothing of."""

_CODE = (FunctionType, MethodType, BuiltinFunctionType)

_CLOSED_ATTRIBUTES = (*_CODE, torch.jit.ScriptModule, CustomOpDef, OpOverload, OpOverloadPacket)

_OF_GLOBALS = (
    *(*CONTAINERS, tuple, partial, MappingProxyType, *STATEFUL, torch.Tensor, nn.Parameter, CustomOpDef),
    *(Counter, defaultdict, WeakKeyDictionary, WeakValueDictionary, WeakSet),
    *(local, SimpleNamespace, Namespace, ChainMap, UserDict, UserList),
)
"""What is kept of globals that functions speak of, beside what is the user's own."""


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
    undo = process_undo()
    try:
        with quiet(), hooks_hidden():
            yield changed
    finally:
        undo()
        changed += kept.restore()


@contextmanager
def objects_kept(values: Sequence[Any]) -> Iterator[None]:
    """Put back what is changed inside of the block in the objects among some arguments; tensors are left to the caller."""
    kept = _Kept(tensors=True)
    kept.look(None, tuple(value for value in values if not isinstance(value, torch.Tensor)))
    try:
        yield
    finally:
        kept.restore()


class _Facts(NamedTuple):
    """What is so for all objects of a class."""

    closed: bool  # nothing in there is looked at
    stateful: bool
    slots: bool


class _Kept:
    """What was found, and how it was."""

    def __init__(self, tensors: bool) -> None:
        self.tensors = tensors
        self.seen: dict[int, Any] = {}  # holds what was seen, so that no identity is given twice
        self.containers: list[tuple[Path, Any, Any]] = []
        self.iterators: list[tuple[dict[Any, Any], dict[Any, Any], Any]] = []
        self.undo: list[Callable[[], object]] = []
        self.classes: dict[int, type] = {}
        self.facts: dict[type, _Facts] = {}  # of the classes of what was looked at
        self.asked = set[type]()  # classes in which was looked
        self.kinds: dict[int, type] = {}  # whose attributes a dictionary holds
        self.room = LARGEST
        self.of_globals = set[int]()  # identities of what lies in globals
        self.spoken: set[str] = set()  # names of which the functions that were found speak
        self.silent: dict[str, list[tuple[Path, Any]]] = {}  # methods of which none has spoken yet

    def look(self, root: nn.Module | None, arguments: tuple[Any, ...]) -> None:
        weights = () if root is None else root.parameters()
        small = root is not None and sum(tensor_bytes(each) for each in weights if not each.is_meta) <= LARGEST
        waiting: deque[tuple[Path, Any]] = deque([((), root), ((), arguments)])
        while (waiting or self._asked_for(waiting)) and len(self.seen) < MOST:
            path, value = waiting.popleft()
            if type(value) in _PLAIN or id(value) in self.seen or (facts := self._facts_of(value)).closed:
                continue
            self.seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                self.undo.append(attributes_undo(value))
                wanted = self.tensors and not value.is_meta
                if wanted and (small or not isinstance(value, nn.Parameter)) and self._has_room(path, value):
                    self.undo.append(tensor_undo(value))
                continue
            if facts.stateful:
                if self._has_room(path, value):
                    self.undo.append(state_undo(value))
                waiting.extend((((), "function"), each) for each in wrapped(value))
                continue
            self._keep(path, value)
            if type(value) in CONTAINERS and not value and not _attributes(value):
                continue  # as most that modules hold are
            if len(self.seen) + len(waiting) < MOST:
                waiting.extend(self._inside(path, value))

    def _has_room(self, path: Path, held: Any) -> bool:
        """Whether a tensor or an array may be copied: what globals hold may be a whole data set."""
        while path:
            path = path[0]
        if path is None:
            self.room -= tensor_bytes(held) if isinstance(held, torch.Tensor) else getattr(held, "nbytes", 0)
        return path is not None or self.room >= 0

    def _asked_for(self, waiting: deque[tuple[Path, Any]]) -> bool:
        """Look at methods of which code speaks that was found since; whether there are any."""
        for name in self.spoken & self.silent.keys():
            waiting.extend(self.silent.pop(name))
        return bool(waiting)

    def _keep(self, path: Path, value: Any) -> None:
        """Keep a value, if it can be changed. An iterator cannot be put back: what is taken from it is given once more."""
        before = len(self.containers)
        if isinstance(value, CONTAINERS):
            then = items_of(value) if isinstance(value, dict) else list(methods_of_container(value).__iter__(value))
            self.containers.append((path, value, then))
        held = _attributes(value)
        if held is not None:
            self.containers.append((path, held, dict(held)))
            self.kinds[id(held)] = type(value)
        if isinstance(value, BaseException):
            self.undo.append(partial(setattr, value, "args", value.args))
        if slots := self._slots_of(value):
            self.undo.append(slots_undo(value, slots))
        for _, live, then in self.containers[before:]:
            if isinstance(live, dict):
                for key in [key for key, item in then.items() if is_iterator(item)]:
                    live[key] = Taken(then[key])
                    self.iterators.append((live, then, key))

    def _take(self, function: FunctionType) -> None:
        """Iterators that a function finds in its closure or in globals."""
        for put, item in places(function):
            if is_iterator(item):
                put(taken := Taken(item))
                self.undo.append(lambda put=put, taken=taken: put(taken.whole()))  # type: ignore[misc]

    def _inside(self, path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
        """What lies in a value, and where."""
        yield from ((((), "function"), item) for item in wrapped(value))
        if isinstance(value, ref):
            yield (None, "()"), value()
        if isinstance(value, _CODE):
            # whose method it is: no part of the model, or found before
            yield (None, "__self__"), getattr(value, "__self__", None)
            if function := users_function(value):
                self.spoken.update(names_in(function.__code__))
                self._take(function)
                self.undo.extend(bindings(function))
                self.containers.append((path, vars(function), dict(vars(function))))
                yield from (((path, name), item) for name, item in vars(function).items())
                yield from ((((), name), item) for name, item in reached(function))
                for name, item in used_globals(function, _OF_GLOBALS):
                    self.of_globals.add(id(item))
                    yield (None, name), item
            return
        if isinstance(value, type):
            yield from self._of_class(value)
            return
        if isinstance(value, (*CONTAINERS, tuple, frozenset)):
            items = methods_of_container(value)
            inside = items.items(value) if isinstance(value, dict) else enumerate(items.__iter__(value))
            closed = _CODE if id(value) in self.of_globals else ()  # functions in there are others', to be called back
            yield from (((path, key), item) for key, item in inside if not isinstance(item, closed))
        held = {**(_attributes(value) or {}), **self._slots_of(value)}
        yield from (((path, key), item) for key, item in held.items() if type(item) not in _PLAIN)
        if (kind := type(value)) not in self.asked:
            self.asked.add(kind)
            yield from self._of_class(kind)

    def _slots_of(self, value: Any) -> dict[str, Any]:
        """What an object has in slots."""
        return slots_of(value) if self._facts_of(value).slots else {}

    def _facts_of(self, value: Any) -> _Facts:
        """Models have thousands of objects of few classes, and each class is asked once."""
        kind = type(value)
        if (facts := self.facts.get(kind)) is None:
            plain = issubclass(kind, _CLOSED) and not (issubclass(kind, _VALUES) and kind.__dictoffset__)
            closed = plain or _stands_between(kind)
            facts = self.facts[kind] = _Facts(closed, issubclass(kind, STATEFUL), has_slots(kind))
        return facts

    def _of_class(self, kind: type) -> Iterator[tuple[Path, Any]]:
        """Data that a user's class holds for all of its objects, and what its methods can reach, once code speaks of them.

        Likewise its metaclass, which may count what is made, or keep it.
        """
        for owner in owners(kind, nn.Module):
            if id(owner) in self.classes:
                continue
            self.classes[id(owner)] = owner
            self.undo.append(data_undo(owner))
            yield from ((((), f"{owner.__name__}.{key}"), value) for key, value in data_of(owner).items())
            for key, value in methods_of(owner).items():
                found = ((), f"{owner.__name__}.{key}"), value
                if runs_unasked(key) or key in self.spoken:
                    yield found
                else:  # not called, for all we know
                    self.silent.setdefault(key, []).append(found)
            yield from self._of_class(type(owner))

    def restore(self) -> list[str]:
        """Put everything back; the names of what had changed."""
        for live, then, key in self.iterators:
            if isinstance(taken := live.get(key), Taken):
                live[key] = then[key] = taken.whole()
        found = [(path, live, key) for path, live, then in self.containers for key in refill(live, then)]
        changed = [_name(path) + key for path, live, key in found if not self._is_own_book(live, key)]
        for undo in reversed(self.undo):
            undo()
        return sorted({name.lstrip(".") for name in changed})

    def _is_own_book(self, held: Any, key: str) -> bool:
        """Whether it is an attribute that its object's class does not keep while it is traced."""
        return id(held) in self.kinds and not_for_tracers(self.kinds[id(held)], key.removeprefix("."))


def _name(path: Path) -> str:
    """A qualified name; the dictionaries that modules keep their parts in are no part of it."""
    keys: list[str] = []
    while path:
        path, key = path
        keys += [] if key in ("_parameters", "_buffers", "_modules") else [f".{key}"]
    return "".join(reversed(keys))


def _stands_between(kind: type) -> bool:
    """Whether a class is one of locks, events, queues or logs. What a thread keeps for itself is none of these."""
    return not issubclass(kind, local) and any((base.__module__ or "").partition(".")[0] in _BETWEEN for base in kind.__mro__)


def _attributes(value: Any) -> dict[str, Any] | None:
    """The dictionary of an object's attributes, if it has one that may be looked at.

    Who asks a partial for its dictionary gives it one, and a partial of that partial is then made in another way.
    """
    if isinstance(value, _CLOSED_ATTRIBUTES):
        return None
    held: Any = getattr(value, "__dict__", None) if type(value) is not partial else value.__reduce__()[2][3]
    return held if isinstance(held, dict) else None
