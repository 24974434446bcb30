"""What a function of the user's can reach and bind beside its arguments: names of its closure, its defaults, globals."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dis import opmap
from functools import cache, cached_property, partial, partialmethod
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from torch._library.custom_ops import CustomOpDef

from partitioner.model.source import is_installed

_OTHERS = sys.stdlib_module_names | {"torch", "numpy", "partitioner"}
"""Packages whose classes, functions and modules are not the user's."""

_BINDS = frozenset(opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"))

CACHE = type(cache(len))
"""A function with a cache."""


def is_users(module: str | None) -> bool:
    """Whether what a module of this name defines is the user's own, and may hold state that the user's functions change.

    A package that is installed is not: what its globals hold, progress bars and loggers, is its own business.

    Example:
        >>> is_users("my_layers.blocks"), is_users("torch.nn"), is_users("collections")
        (True, False, False)
    """
    name = module or "builtins"
    package = name.partition(".")[0]
    known = (getattr(sys.modules.get(each), "__file__", None) for each in (package, name))  # a namespace has no file
    return package not in _OTHERS and not is_installed(next(filter(None, known), ""))


def users_function(code: Any) -> FunctionType | None:
    """The function of Python that runs when ``code`` is called, if it is not torch's."""
    function = code.__func__ if isinstance(code, MethodType) else code
    if isinstance(function, FunctionType) and not (function.__module__ or "").startswith("torch."):
        return function
    return None


def wrapped(value: Any) -> tuple[Any, ...]:
    """What runs when a property, a partial function, a method of another kind or an op of the user's is used, and with what.

    Example:
        >>> wrapped(staticmethod(len))
        (<built-in function len>,)
    """
    match value:
        case property():
            return value.fget, value.fset, value.fdel
        case staticmethod() | classmethod():
            return (value.__func__,)
        case cached_property():
            return (value.func,)
        case partial() | partialmethod():
            return value.func, value.args, value.keywords
        case defaultdict():
            return (value.default_factory,)
        case CustomOpDef():
            return (value._init_fn,)
        case MappingProxyType():
            return tuple(value.values())
        case CACHE():
            return (value.__wrapped__,)
    return ()


def names_in(code: CodeType) -> Iterator[str]:
    """The globals and attributes that a function's code speaks of, those of the functions in it included."""
    for each in _codes_in(code):
        yield from each.co_names


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def reached(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function has of its own, by name: its defaults and its closure.

    Example:
        >>> def outer(seen=[]):
        ...     def note(x, limit=3):
        ...         seen.append(x)
        ...     return note
        >>> dict(reached(outer()))
        {'note.default': 3, 'seen': []}
    """
    defaults = *(function.__defaults__ or ()), *filter(None, [function.__kwdefaults__])
    yield from ((f"{function.__name__}.default", item) for item in defaults)
    yield from ((name, cell.cell_contents) for name, cell in _cells(function))


def used_globals(function: FunctionType, kinds: Collection[type]) -> Iterator[tuple[str, Any]]:
    """Of the globals that a function speaks of those that are the user's own or of some kinds, by name.

    Of a module of the user's, it is what the function speaks of in there.

    Example:
        >>> from collections import Counter
        >>> table, words, number = {}, Counter(), 1
        >>> [name for name, _ in used_globals(lambda: (table, words, number), {dict})]
        ['table']
    """
    for _, name, item in _spoken_of(function):
        if type(item) in kinds or _is_users_own(item):
            yield name, item


def _is_users_own(item: Any) -> bool:
    """Whether a function, a class or an object is the user's."""
    kind = item if isinstance(item, type | FunctionType) else type(item)
    return is_users(getattr(kind, "__module__", None))


def bindings(function: FunctionType) -> Iterator[Callable[[], None]]:
    """Each puts back what a name stands for, if for anything: one of a function's closure, or a global that it may bind."""
    yield from (partial(setattr, cell, "cell_contents", cell.cell_contents) for _, cell in _cells(function))
    if names := {name for code in _codes_in(function.__code__) for name in _bound(code)}:
        for held in _scopes(function, names_in(function.__code__), others=True):
            for name in names:
                yield partial(held.__setitem__, name, held[name]) if name in held else partial(_unbind, held, name)


def _bound(code: CodeType) -> Iterator[str]:
    """The globals and attributes that a code binds; of one with more than 256 names, others, too."""
    if has_any(code, _BINDS):
        numbers = {number for each, number in zip(code.co_code[::2], code.co_code[1::2], strict=True) if each in _BINDS}
        yield from (name for number, name in enumerate(code.co_names) if number % 256 in numbers)


def has_any(code: CodeType, instructions: frozenset[int]) -> bool:
    """Whether a code has one of some instructions."""
    return not instructions.isdisjoint(code.co_code[::2])


def _unbind(held: dict[str, Any], name: str) -> None:
    """A module that was imported meanwhile stays, for it is imported once."""
    if not isinstance(held.get(name), ModuleType):
        held.pop(name, None)


def places(function: FunctionType) -> Iterator[tuple[Callable[[Any], None], Any]]:
    """What a function's closure and its globals hold; before each, what puts another thing in its place."""
    yield from ((partial(setattr, cell, "cell_contents"), cell.cell_contents) for _, cell in _cells(function))
    yield from ((partial(known.__setitem__, name), item) for known, name, item in _spoken_of(function))


def _spoken_of(function: FunctionType) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The globals that a function speaks of, and what it may speak of in modules of the user's: where, by which name, what."""
    names = dict.fromkeys(names_in(function.__code__))
    yield from ((held, name, held[name]) for held in _scopes(function, names) for name in names if name in held)


def _scopes(function: FunctionType, names: Iterable[str], others: bool = False) -> list[dict[str, Any]]:
    """A function's globals, and those of the user's modules that it speaks of by these names, or of ``others``, too."""
    names, scopes = list(names), [function.__globals__]
    for held in scopes:  # which grows: a module may be spoken of in another one
        modules = [held[name] for name in names if isinstance(held.get(name), ModuleType)]
        known = (vars(each) for each in modules if others or is_users(each.__name__))
        scopes += [each for each in known if all(each is not scope for scope in scopes)]
    return scopes


def _cells(function: FunctionType) -> list[tuple[str, CellType]]:
    """The names of a function's closure that stand for something, and their cells."""
    found = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, cell) for name, cell in found if cell != CellType()]
