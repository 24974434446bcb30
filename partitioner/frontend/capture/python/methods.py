"""Methods of classes, which may be replaced, edited or added after a frame was traced. Dynamo does not ask what they are.

It does not ask, either, whether a class has got one that it had not: ``__init__``, ``__bool__``, ``__eq__``, or ``get`` of a
dictionary's heir. And it keeps for good what kind of object a class makes: one that has a truth of its own, a length, items.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

from torch import nn
from torch._dynamo import variables
from torch._dynamo.variables import base

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.python.made import HEAP_TYPE

_CACHED = (
    (getattr(variables, "object_protocol", None), "_get_cached_slots"),  # not in torch 2.11
    (base, "_tp_type"),  # this and the next are in torch 2.14
    (base, "_compute_slotdefs"),
)
"""Functions of a class that are asked once for it."""

_CODE = attrgetter("__code__")


def _anew(plain: Any, kind: type) -> Any:
    return plain.__wrapped__(kind)


for _owner, _name in _CACHED:
    if hasattr(_owner, _name):
        amends(_owner, _name)(_anew)


def methods(kinds: Iterable[type], traced: Collection[CodeType]) -> Iterator[Callable[[dict[str, Any]], bool]]:
    """The condition that methods of some classes are what they were.

    Args:
        kinds: the classes.
        traced: code that was traced: of the methods, those that count.
    """
    kinds = dict.fromkeys(kinds)
    called = [(kind, "__call__", kind.__call__, kind.__call__, kind.__call__.__code__) for kind in kinds if _is_called(kind)]
    found = dict.fromkeys(called) | dict.fromkeys(
        (kind, name, getattr(kind, name), _function(value), _function(value).__code__)
        for kind in kinds
        for owner in kind.__mro__
        if owner is not nn.Module
        for name, value in vars(owner).items()
        if getattr(_function(value), "__code__", None) in traced
    )
    if found:
        having = tuple(function for _, _, _, function, _ in found if _defaults(function))
        held = [(function.__defaults__, dict(function.__kwdefaults__ or {})) for function in having]
        yield _MethodsAre(tuple(zip(*found, strict=True)), having, tuple(map(_defaults, having)), held)
    owners = dict.fromkeys(owner for kind in kinds for each in (kind, type(kind)) for owner in each.__mro__ if _is_open(owner))
    then = tuple((owner, _names(vars(owner))) for owner in owners)
    yield _NoMethodHasCome(then, [(vars(owner), len(vars(owner)), [*vars(owner)][-1]) for owner in owners])


@dataclass(frozen=True)
class _MethodsAre:
    """Classes, names of their methods, what these were, and their functions with their code, which notebooks replace.

    And, of functions that have defaults, the ``id`` of each, of objects that are held. Columns are compared at once, in half
    the time that rows take; a class method is bound anew, and equal.
    """

    then: tuple[tuple[Any, ...], ...]
    having: tuple[Any, ...]
    defaults: tuple[tuple[int, ...], ...]
    held: object = field(compare=False, repr=False)

    def __call__(self, _scope: object) -> bool:
        kinds, names, methods, functions, codes = self.then
        return (
            tuple(map(getattr, kinds, names, repeat(None))) == methods
            and tuple(map(_CODE, functions)) == codes
            and tuple(map(_defaults, self.having)) == self.defaults
        )


@dataclass(frozen=True)
class _NoMethodHasCome:
    """Which methods classes have of their own.

    What comes is the last, so in each call it is asked how many attributes there are, and which is the last.
    """

    then: tuple[tuple[type, frozenset[str]], ...]
    held: list[tuple[MappingProxyType[str, Any], int, str]] = field(compare=False, repr=False)

    def __call__(self, _scope: object) -> bool:
        for held, number, last in self.held:  # in half the time that all() takes
            if len(held) != number or next(reversed(held)) != last:
                return all(_names(vars(owner)) == names for owner, names in self.then)
        return True


def _defaults(function: FunctionType) -> tuple[int, ...]:
    """Which objects they are."""
    return (*map(id, function.__defaults__ or ()), *map(id, (function.__kwdefaults__ or {}).values()))


def _names(held: MappingProxyType[str, Any]) -> frozenset[str]:
    """What of a class's own attributes may be a method, or stand for one."""
    return frozenset(name for name, value in held.items() if callable(value) or hasattr(value, "__get__"))


def _is_open(owner: type) -> bool:
    """Whether a method may come to a class: to neither Python's own nor, so that calls stay short, torch's."""
    return bool(owner.__flags__ & HEAP_TYPE) and not str(owner.__module__).startswith("torch.")


def _is_called(kind: type) -> bool:
    """Whether objects of a class are modules, whose way from a call to forward Dynamo takes without asking."""
    return issubclass(kind, nn.Module) and isinstance(kind.__call__, FunctionType)


def _function(value: Any) -> Any:
    """What runs when an attribute of a class is used, if that can be told from its identity."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value if isinstance(value, FunctionType) else None
