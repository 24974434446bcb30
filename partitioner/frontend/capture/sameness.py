"""Guards that Dynamo leaves out: it compares constants by ``==``, and to that 0.0 is -0.0 and ``(2,)`` is ``(2.0,)``.

Only values for which this matters are looked at again, and only where they are the user's: no layer of torch's own tells them
apart. A forward that reads the environment depends on all of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

from torch._guards import TracingContext

Watched = tuple[tuple[CodeType, Any], ...]
"""Expressions over ``L``, a frame's local variables, and ``G``, its globals; and what each of them was."""

_KINDS = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH"})
_ENVIRONMENT = compile("tuple(__import__('os').environ.items())", "<partitioner guard>", "eval")
_LAST = re.compile(r"(?:\.\w+|\[[^\[\]]*\])$")


def watched(scope: Mapping[str, Any]) -> Watched:
    """What to look at again, of all that the frame being traced depends on. Called by a backend.

    Args:
        scope: ``L`` and ``G`` of that frame.
    """
    context = TracingContext.try_get()
    return tuple(_ambiguous(context, dict(scope))) if context is not None else ()


def _ambiguous(context: TracingContext, scope: dict[str, Any]) -> Iterator[tuple[CodeType, Any]]:
    guards = [(_name(guard), guard.create_fn_name()) for guard in context.guards_context.dynamo_guards]
    if any(".environ" in name for name, _ in guards):
        yield _ENVIRONMENT, eval(_ENVIRONMENT)
    for name in sorted({name for name, kind in guards if kind in _KINDS}):
        try:
            code = compile(name, "<partitioner guard>", "eval")
            value = eval(code, scope)  # an expression of torch's own making
            owner = eval(_LAST.sub("", name), scope)
        except Exception:  # it speaks of what only Dynamo has
            continue
        if _has_twins(value) and not type(owner).__module__.startswith("torch."):
            yield code, value


def _name(guard: Any) -> str:
    name = guard.name
    return str(name() if callable(name) else name)


def _has_twins(value: Any) -> bool:
    """Whether there is another value that is equal and not the same."""
    if type(value) is tuple:
        return any(type(item) in (int, float, bool, complex) or _has_twins(item) for item in value)
    return type(value) is float and value == 0.0


def check(found: Watched, module_globals: dict[str, Any]) -> Callable[[Any], bool]:
    """A guard: whether everything watched is what it was, for a frame's local variables."""

    def holds(local_variables: Any) -> bool:
        scope = {"L": local_variables, "G": module_globals}
        return all(same(eval(code, scope), value) for code, value in found)

    return holds


def same(one: Any, other: Any) -> bool:
    """Whether two constants are equal, of one type, and zeros of one sign.

    Example:
        >>> same(0.0, -0.0), same((2,), (2.0,)), same((1, 0.5), (1, 0.5))
        (False, False, True)
    """
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(same, one, other))
    return one == other and (type(one) is not float or math.copysign(1, one) == math.copysign(1, other))
