"""Methods of Dynamo that do otherwise while a frame is traced. One thread at a time traces, under torch's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial, wraps
from inspect import getattr_static
from typing import Any

import torch
from torch._dynamo.variables import BuiltinVariable, TensorVariable
from torch._dynamo.variables.base import VariableTracker

from partitioner.errors import TraceError

GETATTR = "tp_getattro_impl" if hasattr(VariableTracker, "tp_getattro_impl") else "var_getattr"
"""What variables look an attribute up with; torch 2.14 names it after CPython's slot."""

COMPARE = "tp_richcompare_impl" if hasattr(VariableTracker, "tp_richcompare_impl") else "richcompare_impl"
"""Likewise what they are compared with, where they have it; in torch 2.11 they have not."""


def method_of_tensors(name: str) -> tuple[Any, str]:
    """Where the tracer looks a method of tensors up: torch 2.14 has a table of them, whose entries it has from the class."""
    table = getattr(TensorVariable, "tp_methods", {})
    return (table, name) if name in table else (TensorVariable, f"method_{name}")


_AMENDMENTS: list[tuple[Any, Any, Callable[..., Any]]] = []
"""Owners, names of their methods, and what is called instead, in the order in which they take effect."""

_TABLES = {
    "call_function_handler_cache": {},
    "_binop_handlers": staticmethod(cache(BuiltinVariable._binop_handlers.__wrapped__)),
}
"""For our traces alone, what Dynamo calls Python's functions with: it keeps the methods that there were when it first asked."""


def amends(owner: Any, name: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """While any frame is traced, a method of a class, a function of a module or an entry of a table is another one.

    Args:
        owner: the class, module or table.
        name: what it is called there.

    Returns:
        A decorator for what is called instead: with the plain one first, and then with its arguments.

    Raises:
        TraceError: there is no such thing in this torch, which would trace otherwise than is known here.
    """
    try:
        _held(owner, name)
    except (AttributeError, LookupError):
        raise TraceError(
            f"torch {torch.__version__} has a tracer that this version of partitioner does not know: "
            f"{getattr(owner, '__name__', 'its table')} has no {name}. Take torch 2.11 to 2.14, or a newer partitioner"
        ) from None

    def register(instead: Callable[..., Any]) -> Callable[..., Any]:
        _AMENDMENTS.append((owner, name, instead))
        return instead

    return register


@contextmanager
def all_amended() -> Iterator[None]:
    """While a frame is traced: all that `amends` has registered is in effect, and what others have traced with is not."""
    with ExitStack() as stack:
        stack.enter_context(_exchanged(BuiltinVariable, _TABLES))
        for owner, name, instead in _AMENDMENTS:
            stack.enter_context(_exchanged(owner, {name: _around(_held(owner, name), instead)}))
        yield


def _around(held: Any, instead: Callable[..., Any]) -> Any:
    if handler := getattr(held, "handler", None):  # an entry of that table
        return type(held)(_around(handler, instead))
    plain = held.__func__ if isinstance(held, staticmethod) else held

    @wraps(plain)
    def method(*args: Any, **kwargs: Any) -> Any:
        return instead(plain, *args, **kwargs)

    return staticmethod(method) if isinstance(held, staticmethod) else method


def amended(owner: Any, **methods: Callable[..., Any]) -> AbstractContextManager[None]:
    """For a while, methods of a class or functions of a module are others.

    Args:
        owner: the class or module.
        methods: what takes the place of them, by their names.

    Example:
        >>> class Plain:
        ...     def number(self): return 1
        >>> with amended(Plain, number=lambda self: 2):
        ...     Plain().number()
        2
        >>> Plain().number()
        1
    """
    return _exchanged(owner, methods)


@contextmanager
def _exchanged(owner: Any, methods: Mapping[Any, Any]) -> Iterator[None]:
    before = {name: _held(owner, name) for name in methods}
    put = owner.__setitem__ if isinstance(owner, dict | list) else partial(setattr, owner)
    for name, method in methods.items():
        put(name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            put(name, method)


def _held(owner: Any, name: Any) -> Any:
    return owner[name] if isinstance(owner, dict | list) else getattr_static(owner, name)
