"""One node of a torch.fx graph, called: its arguments, its state, and what it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from partitioner.model.state import attribute


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


def load_state(root: nn.Module, path: str, constants: Mapping[str, Any]) -> Any:
    """A parameter, buffer or constant, as the module has it now."""
    return constants[path] if path in constants else attribute(root, path)


def call_target(root: nn.Module, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a torch.fx call node gives: of a module in ``root``, of a method of its first argument, or of a function."""
    if kind == "call_module":
        return root.get_submodule(str(target))(*args, **kwargs)
    if kind == "call_method":
        return getattr(args[0], str(target))(*args[1:], **kwargs)
    return target(*args, **kwargs)
