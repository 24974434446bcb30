"""What can be changed inside of a value that looks like one thing: the items of a list, the fields of a config."""

from __future__ import annotations

import sys
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

_WHOLE = (torch.Tensor, torch.fx.Proxy, nn.Module, type, FunctionType, MethodType, ModuleType, Enum, str, bytes)
"""Known by identity: there is nothing inside, or what is inside is looked at elsewhere."""


def inside(value: Any) -> Any:
    """The list, set or dictionary in which a value keeps what can be changed in it; ``None`` if it is known by identity.

    Objects of Python's own library and of torch's are known by identity, but for `types.SimpleNamespace`.

    Example:
        >>> from types import SimpleNamespace
        >>> inside(SimpleNamespace(scale=2.0))
        {'scale': 2.0}
        >>> inside([1, 2]), inside(3)
        ([1, 2], None)
    """
    if isinstance(value, _WHOLE):
        return None
    if isinstance(value, dict | list | set):
        return value
    home = type(value).__module__.partition(".")[0]
    of_python = home in sys.stdlib_module_names and home != "__main__" and type(value).__name__ != "SimpleNamespace"
    return None if of_python or home == "torch" else getattr(value, "__dict__", None)
