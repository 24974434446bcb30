"""Methods of classes, which may be replaced or edited after they were traced. Dynamo does not ask what they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn


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
        yield _MethodsAre(tuple(found))


@dataclass(frozen=True)
class _MethodsAre:
    """Classes, names of their methods, and what these were: also their code, which notebooks replace when a file is edited."""

    then: tuple[tuple[type, str, Any, Any, CodeType], ...]

    def __call__(self, _scope: object) -> bool:
        for kind, name, method, function, code in self.then:
            found = getattr(kind, name, None)
            if found is not method and not (type(found) is MethodType and found == method):  # a class method is bound anew
                return False
            if function.__code__ is not code:
                return False
        return True


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
