"""Nothing is heard of runs that the user did not ask for: tracing, comparing, measuring.

Whatever an op, or the model, warns of is said when the user calls it, as often as eager says it. So meanwhile this thread and
the lanes show no warning. What the model prints meanwhile is printed: `sys.stdout` is everybody's, and whoever redirects it on
another thread would be undone.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class Note(RuntimeWarning):
    """A warning of this package's own, which is shown whoever runs the model."""


class _Quiet(threading.local):
    """In how many blocks this thread is."""

    blocks = 0


HERE = _Quiet()


class _OnThisThread(type):
    """The class of a class of which warnings are subclasses, on a thread that is to be quiet: what a filter asks."""

    def __subclasscheck__(cls, kind: type) -> bool:
        return _is_quiet() and not (isinstance(kind, type) and Note in kind.__mro__)


class _Unasked(Warning, metaclass=_OnThisThread):
    """Stands for all warnings of runs that nobody asked for."""


_FILTER = ("ignore", None, _Unasked, None, 0)


def _is_quiet() -> bool:
    return HERE.blocks > 0 or threading.current_thread().name.startswith("partitioner lane")


@contextmanager
def quiet() -> Iterator[None]:
    """A block in which this thread shows no warnings.

    The filter is put in its place by hand: told of it, Python would forget which warnings it has shown.

    Example:
        >>> with quiet():
        ...     warnings.warn("once more")
    """
    before, filters = HERE.blocks, warnings.filters
    try:
        HERE.blocks = before + 1
        filters.insert(0, _FILTER)  # type: ignore[attr-defined]
        yield
    finally:
        HERE.blocks = before
        if _FILTER in filters:
            filters.remove(_FILTER)  # type: ignore[attr-defined]
