"""What a function of the user's can reach and bind beside its arguments: names of its closure, its defaults, globals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any


def users_function(code: Any) -> FunctionType | None:
    """The function of Python that runs when ``code`` is called, if it is not torch's."""
    function = code.__func__ if isinstance(code, MethodType) else code
    if isinstance(function, FunctionType) and not (function.__module__ or "").startswith("torch."):
        return function
    return None


def reached(function: FunctionType, kinds: Collection[type]) -> Iterator[tuple[str, Any]]:
    """What a function can reach, by name: its defaults, its closure, and of the globals that it speaks of some kinds.

    Example:
        >>> seen = []
        >>> def note(x, limit=3):
        ...     seen.append(x)
        >>> dict(reached(note, {list}))
        {'note.default': 3, 'seen': []}
    """
    defaults = *(function.__defaults__ or ()), *filter(None, [function.__kwdefaults__])
    yield from ((f"{function.__name__}.default", item) for item in defaults)
    known = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    yield from ((name, item) for name, item in known.items() if type(item) in kinds)
    yield from ((name, cell.cell_contents) for name, cell in _cells(function))


def bindings(function: FunctionType) -> Iterator[Callable[[], None]]:
    """Each puts back what a name stands for that a function may bind: one of its closure, or a global number or text."""
    yield from (partial(setattr, cell, "cell_contents", cell.cell_contents) for _, cell in _cells(function))
    known = function.__globals__
    for name in function.__code__.co_names:
        if name in known and isinstance(known[name], int | float | str | None):
            yield partial(known.__setitem__, name, known[name])


def with_attributes(function: FunctionType) -> Iterator[FunctionType]:
    """A function, and those of the user's in globals that it speaks of and that have attributes: a counter of calls."""
    yield function
    known = map(function.__globals__.get, function.__code__.co_names)
    yield from (each for each in known if isinstance(each, FunctionType) and vars(each) and users_function(each))


def _cells(function: FunctionType) -> list[tuple[str, CellType]]:
    """The names of a function's closure that stand for something, and their cells."""
    found = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, cell) for name, cell in found if cell != CellType()]
