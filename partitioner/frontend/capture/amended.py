"""Methods of Dynamo that do otherwise while a frame is traced. One thread at a time traces, under torch's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any


@contextmanager
def amended(owner: Any, **methods: Callable[..., Any]) -> Iterator[None]:
    """For a while, methods of a class, or functions of a module, are others.

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
    before = {name: getattr_static(owner, name) for name in methods}
    for name, method in methods.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(owner, name, method)
