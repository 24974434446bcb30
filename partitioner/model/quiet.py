"""Nothing is heard of runs that the user did not ask for: tracing, comparing, measuring.

Whatever an op, or the model, warns of is said when the user calls it, as often as eager says it. So meanwhile this thread and
the lanes show no warning. A filter says so, which is put first among Python's own when this is imported, and is never moved: a
model may read what filters there are, and so may other threads. One that somebody puts before it has the first word.

What the model prints meanwhile is printed: `sys.stdout` is everybody's, and whoever redirects it on another thread would be
undone.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

QUIET: set[int] = set()
"""The threads that are to show no warnings, by their numbers."""


class Note(RuntimeWarning):
    """A warning of this package's own, which is shown whoever runs the model."""


class _OnThisThread(type):
    """The class of a class of which warnings are subclasses, on a thread that is to be quiet: what a filter asks."""

    def __subclasscheck__(cls, kind: type) -> bool:
        return _is_quiet() and not (isinstance(kind, type) and Note in kind.__mro__)


class _Unasked(Warning, metaclass=_OnThisThread):
    """Stands for all warnings of runs that nobody asked for."""


_FILTER = ("ignore", None, _Unasked, None, 0)


def _is_quiet() -> bool:
    return bool(QUIET) and (threading.get_ident() in QUIET or threading.current_thread().name.startswith("partitioner lane"))


def stand_first() -> None:
    """Put the filter first. That is done by hand: told of it, Python would forget which warnings it has shown."""
    if _FILTER not in warnings.filters:
        warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]


@contextmanager
def quiet() -> Iterator[None]:
    """A block in which this thread shows no warnings, and nor does a lane.

    Example:
        >>> stand_first()
        >>> with quiet():
        ...     warnings.warn("once more")
    """
    thread = threading.get_ident()
    outermost = thread not in QUIET
    try:
        QUIET.add(thread)
        yield
    finally:
        if outermost:
            QUIET.discard(thread)


stand_first()
