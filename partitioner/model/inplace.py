"""Whether a call writes to its first argument, told from its name and its arguments alone."""

from __future__ import annotations

import operator
from typing import Any

import torch

from partitioner.model.node import target_name


def writes_in_place(node: torch.fx.Node) -> bool:
    """Whether a call is one in place: ``add_``, ``iadd``, ``setitem``, or ``inplace`` is asked for, by name or by position.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> [writes_in_place(graph.call_method(name, (x,))) for name in ("add_", "add", "__len__")]
    [True, False, False]
    """
    return _writes_first(node.target, target_name(node)) or bool(node.kwargs.get("inplace")) or _is_asked_by_position(node)


def _writes_first(target: Any, name: str) -> bool:
    own, bare = target in vars(operator).values(), name.strip("_")
    augmented = (own or name.startswith("__")) and bare.startswith("i") and hasattr(operator, f"__{bare}__")
    trailing = name.endswith("_") and not name.endswith("__") and not own  # ``operator.and_`` writes nothing
    return (augmented and bare not in _NOT_AUGMENTED) or trailing or name in ("setitem", "__setitem__", "delitem", "set_data")


_NOT_AUGMENTED = frozenset({"index", "inv", "invert", "indexOf", "is_", "is_not", "itemgetter"})


def _is_asked_by_position(node: torch.fx.Node) -> bool:
    """Whether ``inplace`` was given by position, as in ``F.relu(x, True)``."""
    if isinstance(node.target, str) or not node.args:
        return False
    code = getattr(node.target, "__code__", None)
    if code is None or "inplace" not in code.co_varnames[: code.co_argcount]:
        return False
    position = code.co_varnames.index("inplace")
    return len(node.args) > position and node.args[position] is not False
