"""Deques with a maximum length, such as a history of the last frames.

Dynamo forgets the maximum of a deque that it did not make itself, so a history would grow for ever. Here such a deque ends the
graph where it is used, and Python does to it what it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables.builder import VariableBuilder


@contextmanager
def deques_kept() -> Iterator[None]:
    """While a frame is traced: no deque with a maximum length is taken in, nor given to a program made for one without."""
    kinds = VariableBuilder._type_dispatch()
    plain = kinds[deque]

    def wrap(builder: Any, value: deque[Any]) -> Any:
        if value.maxlen is not None:
            raise Unsupported(f"a deque of at most {value.maxlen} items is used")
        if builder.source is not None:
            install_guard(AttrSource(builder.source, "maxlen").make_guard(GuardBuilder.CONSTANT_MATCH))
        return plain(builder, value)

    kinds[deque] = wrap
    try:
        yield
    finally:
        kinds[deque] = plain
