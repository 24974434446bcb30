"""One node of a torch.fx graph, called: its arguments, and what it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch


def fill(arguments: Any, value: Callable[[torch.fx.Node], Any]) -> Any:
    """Arguments of a torch.fx node with values in the nodes' places.

    Lists and dicts come out as plain ones: a function may change those that it is given, and torch.fx's refuse that.
    """
    if isinstance(arguments, torch.fx.Node):
        return value(arguments)
    if isinstance(arguments, tuple):
        items = [fill(item, value) for item in arguments]
        return type(arguments)(*items) if hasattr(arguments, "_fields") else tuple(items)
    if isinstance(arguments, list):
        return [fill(item, value) for item in arguments]
    if isinstance(arguments, dict):
        return {key: fill(item, value) for key, item in arguments.items()}
    if isinstance(arguments, slice):
        return slice(*(fill(part, value) for part in (arguments.start, arguments.stop, arguments.step)))
    return arguments


def made_of(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Some nodes, and all that they are made of."""
    found, waiting = set[torch.fx.Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def target_name(node: torch.fx.Node) -> str:
    """What a node calls, by its name: of a method, or of a function; ``""`` of what has none."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def call_node(node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a torch.fx call of a function, or of a method of its first argument, gives."""
    return call_target(node.op, node.target, args, kwargs)


def call_target(kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """As `call_node`, with the target given."""
    if kind == "call_method":
        return getattr(args[0], str(target))(*args[1:], **kwargs)
    return target(*args, **kwargs)
