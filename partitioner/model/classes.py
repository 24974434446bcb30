"""What a class of the user's holds: data for all of its objects, and methods that run if somebody speaks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, EnumType
from functools import cached_property, partialmethod
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from torch import nn

from partitioner.model.functions import is_users, names_in, users_function, wrapped

_METHODS = (FunctionType, staticmethod, classmethod, property, cached_property, partialmethod)
_SLOTS = (MemberDescriptorType, GetSetDescriptorType)
_OURS = ("_abc_impl", "_partitioner_programs")
_BOOKS = (*_OURS, "_value2member_map_", "_member_map_", "_member_names_", "_inverted_")
"""Where Python's enums note combinations of flags that somebody has asked for: taken out, the next would be another one."""

_MISSING = object()
_ASKING = frozenset({"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"})


def owners(kind: type, part: type | None = None) -> list[type]:
    """The class and its bases, those that are the user's; of a ``part`` of the model all that are not torch's.

    Example:
        >>> from collections import Counter
        >>> owners(Counter)  # Python's own
        []
    """
    if part is not None and issubclass(kind, part):
        return [owner for owner in kind.__mro__ if not (owner.__module__ or "").startswith(("torch.", "builtins"))]
    return [owner for owner in kind.__mro__ if is_users(owner.__module__)]


def methods_of(owner: type) -> dict[str, Any]:
    """Methods of all kinds that a class defines itself, by name."""
    return {name: value for name, value in list(vars(owner).items()) if isinstance(value, _METHODS)}


def runs_unasked(name: str) -> bool:
    """Whether a method runs although no code speaks of it: a module's forward, and what Python calls by itself."""
    return name == "forward" or (name.startswith("__") and name.endswith("__"))


def not_for_tracers(kind: type, name: str) -> bool:
    """Whether an attribute is book that objects of a class keep for themselves, and not while they are traced.

    So is a private one of a class that asks whether it is traced; and of an installed library's class, but for modules, any of
    which a method speaks that asks so.

    Example:
        >>> class Cached:
        ...     __module__ = "my_layers"
        ...     def put(self, value):
        ...         if not torch.compiler.is_compiling():
        ...             self._value = self.last = value
        >>> not_for_tracers(Cached, "_value"), not_for_tracers(Cached, "last")
        (True, False)
    """
    if issubclass(kind, Enum) and name in _BOOKS:
        return True
    methods = [method for owner in kind.__mro__ for method in methods_of(owner).values()]
    functions = filter(None, (users_function(part) for method in methods for part in (method, *wrapped(method))))
    asking = [names for names in (set(names_in(function.__code__)) for function in functions) if names & _ASKING]
    if name.startswith("_"):
        return bool(asking)
    return not is_users(kind.__module__) and not issubclass(kind, nn.Module) and any(name in names for names in asking)


def data_of(owner: type) -> dict[str, Any]:
    """What a class holds beside its methods, by name.

    Example:
        >>> class Bag:
        ...     count, items = 0, []
        ...     def add(self): ...
        >>> data_of(Bag)
        {'count': 0, 'items': []}
    """
    found = {name: value for name, value in list(vars(owner).items()) if not isinstance(value, (*_METHODS, *_SLOTS))}
    book = _BOOKS if isinstance(owner, EnumType) else _OURS
    return {name: value for name, value in found.items() if not name.startswith("__") and name not in book}


def data_undo(owner: type) -> Callable[[], None]:
    """Puts back what the class holds now: other values, and names that it did not have."""
    then = data_of(owner)

    def undo() -> None:
        now = data_of(owner)
        with suppress(AttributeError, TypeError):  # a class may be closed
            for name in now.keys() - then.keys():
                type.__delattr__(owner, name)
            for name, value in then.items():
                if now.get(name, _MISSING) is not value:
                    type.__setattr__(owner, name, value)

    return undo


def slots_of(value: Any) -> dict[str, Any]:
    """What an object of a user's class has in slots, by name.

    Example:
        >>> class Pair:
        ...     __module__, __slots__ = "my_layers", ("left", "right")
        >>> pair = Pair()
        >>> pair.left = 1
        >>> slots_of(pair)
        {'left': 1}
    """
    found = {}
    for name, slot in _slots(type(value)).items():
        with suppress(AttributeError):  # nothing is there yet
            found[name] = slot.__get__(value)
    return found


def has_slots(kind: type) -> bool:
    """Whether objects of a class keep something in slots that a user's class gives them."""
    return bool(_slots(kind))


def slots_undo(value: Any, then: Mapping[str, Any]) -> Callable[[], None]:
    """Puts back what an object had in its slots, past whatever its class says of setting attributes."""

    def undo() -> None:
        for name, slot in _slots(type(value)).items():
            if name in then:
                slot.__set__(value, then[name])
            else:
                with suppress(AttributeError):
                    slot.__delete__(value)

    return undo


def _slots(kind: type) -> dict[str, Any]:
    found = {name: slot for owner in owners(kind) for name, slot in vars(owner).items()}
    return {name: slot for name, slot in found.items() if isinstance(slot, MemberDescriptorType)}
