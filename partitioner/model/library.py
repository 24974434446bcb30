"""Functions of Python's library that are written in C, in Python: a tracer can look into these.

Heaps are kept by Python's own `heapq._siftup` and `heapq._siftdown`, which nothing in C replaces. And one of torch's, which it
does not look into for the file that it is in.
"""

from __future__ import annotations

import bisect
import heapq
import operator
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torch.utils.checkpoint import checkpoint_sequential


def _empty() -> str:
    try:
        return str(max(()))
    except ValueError as error:
        return str(error).removeprefix("max")


_EMPTY = _empty()
"""What this Python says of the greatest of nothing, behind the function's name."""


def _heappush(heap: list[Any], item: Any) -> None:
    heap.append(item)
    heapq._siftdown(heap, 0, len(heap) - 1)  # type: ignore[attr-defined]  # which is Python's, as all that follows


def _heappop(heap: list[Any]) -> Any:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    return _heapreplace(heap, last) if heap else last


def _heapreplace(heap: list[Any], item: Any) -> Any:
    if not heap:
        raise IndexError("index out of range")
    first, heap[0] = heap[0], item
    heapq._siftup(heap, 0)  # type: ignore[attr-defined]
    return first


def _heappushpop(heap: list[Any], item: Any) -> Any:
    return _heapreplace(heap, item) if heap and heap[0] < item else item


def _heapify(heap: list[Any]) -> None:
    for place in reversed(range(len(heap) // 2)):
        heapq._siftup(heap, place)  # type: ignore[attr-defined]


def _insort_left(values: list[Any], item: Any) -> None:
    values.insert(bisect.bisect_left(values, item), item)


def _insort_right(values: list[Any], item: Any) -> None:
    values.insert(bisect.bisect_right(values, item), item)


def _here(code: CodeType) -> CodeType:
    """The code, with that of the functions in it, as if it were of this file."""
    parts = tuple(_here(part) if isinstance(part, CodeType) else part for part in code.co_consts)
    return code.replace(co_filename=__file__, co_consts=parts)


def _seen(function: Any) -> FunctionType:
    """A function of torch's that a tracer looks into."""
    return FunctionType(_here(function.__code__), function.__globals__, function.__name__, function.__defaults__)


IN_PYTHON: dict[Any, Callable[..., Any]] = {
    heapq.heappush: _heappush,
    heapq.heappop: _heappop,
    heapq.heapreplace: _heapreplace,
    heapq.heappushpop: _heappushpop,
    heapq.heapify: _heapify,
    bisect.insort_left: _insort_left,
    bisect.insort_right: _insort_right,
}

OF_TORCH: dict[Any, Callable[..., Any]] = {checkpoint_sequential: _seen(checkpoint_sequential)}


def most(*given: Any, key: Any = None, **default: Any) -> Any:
    """`max` with a key or a default."""
    return _first("max", operator.gt, given, key, **default)


def least(*given: Any, key: Any = None, **default: Any) -> Any:
    """`min` with a key or a default."""
    return _first("min", operator.lt, given, key, **default)


def _first(name: str, before: Callable[[Any, Any], Any], given: Any, key: Any, **default: Any) -> Any:
    values = list(given[0] if len(given) == 1 else given)
    if not values:
        return _nothing(name, **default)
    best, rank = values[0], _rank(values[0], key)
    for value in values[1:]:
        other = _rank(value, key)
        if before(other, rank):
            best, rank = value, other
    return best


def _rank(value: Any, key: Callable[[Any], Any] | None) -> Any:
    return value if key is None else key(value)


def _nothing(name: str, **default: Any) -> Any:
    if "default" in default:
        return default["default"]
    raise ValueError(name + _EMPTY)
