"""Items of containers: read and put back by the container's own methods, for a user's subclass may do something of its own."""

from __future__ import annotations

from collections import OrderedDict, deque
from operator import is_
from typing import Any

CONTAINERS = (OrderedDict, dict, list, set, deque)
_PLAIN = frozenset({*CONTAINERS, tuple, frozenset})
_VALUES = (int, float, str, tuple, bytes)
_MISSING = object()


def methods_of_container(container: Any) -> Any:
    """The class whose methods read and set the items of a container, and do nothing else."""
    kind = type(container)
    return kind if kind in _PLAIN else next(kind for kind in (*CONTAINERS, tuple, frozenset) if isinstance(container, kind))


def items_of(container: dict[Any, Any]) -> dict[Any, Any]:
    """What a dictionary holds; of a namespace, as of `exec`, not the names that its functions' tracers write into it."""
    found = dict(methods_of_container(container).items(container))
    if "__builtins__" not in found:
        return found
    return {key: item for key, item in found.items() if not (isinstance(key, str) and key.startswith("__"))}


def refill(live: Any, then: Any) -> list[str]:
    """Put old items back into a container; what had changed: keys of a dictionary, or the whole of another one."""
    items = methods_of_container(live)
    if items.__len__(live) == len(then) and _holds_the_same(live, then, items):
        return []
    if isinstance(live, dict):
        now = items_of(live)
        changed = [key for key in {**then, **now} if now.get(key, _MISSING) is not then.get(key, _MISSING)]
        for key in now.keys() - then.keys():
            items.__delitem__(live, key)
        left = filter(then.__contains__, now)
        whole = not then.keys() <= now.keys() or not all(one is other for one, other in zip(left, then, strict=True))
        for key in then if whole else filter(then.__contains__, changed):
            if whole:
                items.pop(live, key, None)  # or it would stay in the place where it is
            items.__setitem__(live, key, then[key])
        return [
            f".{key if isinstance(key, str | int) else type(key).__name__}"
            for key in changed
            if not _equal(now.get(key, _MISSING), then.get(key, _MISSING))
        ]
    old = list(items.__iter__(live))
    items.clear(live)
    if isinstance(live, set):  # its order says nothing, and is another one once it was emptied and filled
        items.update(live, then)
        return [] if set(map(_member, old)) == set(map(_member, then)) else [""]
    items.extend(live, then)
    return [] if len(old) == len(then) and all(map(_equal, old, then)) else [""]


def _holds_the_same(live: Any, then: Any, items: Any) -> bool:
    """Whether a container holds the very things that it held, in their order. Most do, and models have tens of thousands."""
    same = all(map(is_, items.__iter__(live), then))
    return same and (not isinstance(live, dict) or all(map(is_, items.values(live), then.values())))


def _equal(one: Any, other: Any) -> bool:
    """Whether two things that are not the same object are equal. Tensors and the user's own types are not known to be."""
    return type(one) is type(other) and isinstance(one, _VALUES) and one == other


def _member(item: Any) -> tuple[type, Any]:
    """What two items have in common that are equal, as `_equal` has it."""
    return type(item), item if isinstance(item, _VALUES) else id(item)
