"""Frames that cannot be gone on with in the middle.

Where a graph ends, Dynamo goes on in a function of its own, with variables of its own, another name, and a new object for each
context manager that the frame holds, which does not know what the old one found. So a frame that asks for its variables, or
for itself, or enters and leaves by ``__enter__`` and ``__exit__``, is one graph or runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dis import get_instructions
from functools import lru_cache
from types import CodeType
from typing import Any

from torch._dynamo.symbolic_convert import InstructionTranslatorBase

from partitioner.frontend.capture.amended import amends

_GLOBALS = frozenset(("locals", "vars", "dir", "eval", "exec"))
_ATTRIBUTES = frozenset(("__enter__", "__exit__", "_getframe", "currentframe"))


@amends(InstructionTranslatorBase, "should_compile_partial_graph")
def _may_go_on(plain: Callable[..., bool], self: Any) -> bool:
    return not _looks_at_itself(self.f_code) and plain(self)


@lru_cache(256)
def _looks_at_itself(code: CodeType) -> bool:
    named = [(each.opname, each.argval) for each in get_instructions(code)]
    return any(
        (how in ("LOAD_GLOBAL", "LOAD_NAME") and name in _GLOBALS)
        or (how in ("LOAD_ATTR", "LOAD_METHOD") and name in _ATTRIBUTES)
        for how, name in named
    )
