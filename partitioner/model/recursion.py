"""Python's recursion limit: one number for the whole process, and another one while a frame is traced."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DEEP = 10_000
"""The limit while a frame is traced: a call of the user's takes Dynamo some ten of its own."""

_BEFORE: list[int] = []
"""The limits that are to come back, the user's first. One thread at a time traces."""


@contextmanager
def deeper() -> Iterator[None]:
    """While a frame is traced: the limit is ``DEEP``, unless it is higher anyway."""
    before, limits = sys.getrecursionlimit(), list(_BEFORE)
    try:
        _BEFORE.append(before)
        sys.setrecursionlimit(max(before, DEEP))
        yield
    finally:
        sys.setrecursionlimit(before)
        _BEFORE[:] = limits


def recursion_limit() -> int:
    """The limit that the user has set, whoever traces at the moment: what is put back later must not be the tracer's."""
    return next(iter(_BEFORE), sys.getrecursionlimit())


def _end() -> None:
    """In the child of a fork no other thread traces."""
    if _BEFORE:
        sys.setrecursionlimit(_BEFORE[0])
        _BEFORE.clear()


os.register_at_fork(after_in_child=_end)
