"""What a forward reads beside its inputs while it is traced: attributes of its modules, and whether gradients are enabled.

Tracing burns in what is read: a factor, a flag, a field of a config. The program is right for as long as these hold, so they
are noted here and become guards of the program (`runtime.attributes`). What a module that is called as a whole reads is
read again in every call, and is nothing to note.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from partitioner.ir.signature import AttributeRead
from partitioner.model.source import is_user_code

_LAYERS = str(Path(torch.nn.__file__).parent)
_CALLS = str(Path(_LAYERS) / "modules" / "module.py")
_OWN = frozenset(nn.Module().__dict__) | {"__dict__", "__class__"}
"""What every module has; training flags, submodules and hooks are looked at elsewhere."""

_MODES = (
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_autocast_enabled",
    "is_autocast_cpu_enabled",
    "is_autocast_cache_enabled",
    "get_autocast_dtype",
    "get_autocast_cpu_dtype",
    "get_autocast_gpu_dtype",
)
"""Functions of torch that tell a caller's modes."""


@dataclass
class Reads:
    """What has been read so far.

    Args:
        attributes: of modules.
        assigned: attributes that forward gave a value.
        modes: whether the caller's modes were asked for: gradients, inference, autocast.
    """

    attributes: set[AttributeRead] = field(default_factory=lambda: {AttributeRead("", "forward")})
    assigned: set[AttributeRead] = field(default_factory=set)
    modes: bool = False

    @property
    def lasting(self) -> tuple[AttributeRead, ...]:
        """What a program depends on. A counter of forward's own is no reason for another program."""
        return tuple(sorted(self.attributes - self.assigned))


@contextmanager
def noting_reads(root: nn.Module) -> Iterator[Reads]:
    """Note what code of models and layers reads of ``root``'s modules, and assigns to them, on this thread.

    `nn.Module` inherits its ``__getattribute__``; it is given one of its own meanwhile.
    """
    reads, thread = Reads(), threading.get_ident()
    paths: dict[int, str] = {}
    for path, module in root.named_modules():
        paths.setdefault(id(module), path)

    def note(module: nn.Module, name: str, into: set[AttributeRead]) -> None:
        path = paths.get(id(module)) if name not in _OWN and threading.get_ident() == thread else None
        if path is not None and _matters(name, sys._getframe(2).f_code.co_filename):
            into.add(AttributeRead(path, name))

    def get(module: nn.Module, name: str) -> Any:
        note(module, name, reads.attributes)
        return object.__getattribute__(module, name)

    assign = nn.Module.__setattr__

    def set_(module: nn.Module, name: str, value: Any) -> None:
        note(module, name, reads.assigned)
        assign(module, name, value)

    def asking(function: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any) -> Any:
            if threading.get_ident() == thread and _matters("", sys._getframe(1).f_code.co_filename):
                reads.modes = True
            return function(*args)

        return asked

    watched: Any = {name: asking(getattr(torch, name)) for name in _MODES}
    with mock.patch.multiple(torch, **watched), mock.patch.multiple(nn.Module, __getattribute__=get, __setattr__=set_):
        yield reads


def _matters(name: str, file: str) -> bool:
    """Whether the reader is code that computes, a model's or a layer's; or `nn.Module.__call__`, asking for its forward."""
    return is_user_code(file) or (file.startswith(_LAYERS) and (file != _CALLS or name == "forward"))


def every_read(root: nn.Module) -> Reads:
    """Everything that a forward could read, for where it cannot be watched."""
    found = {AttributeRead(path, name) for path, module in root.named_modules() for name in _names(module)}
    return Reads(found, modes=True)


def _names(module: nn.Module) -> Iterator[str]:
    """What a module has of its own, and what the classes of a model give it."""
    yield "forward"
    yield from module.__dict__.keys() - _OWN
    for owner in type(module).__mro__:
        if not owner.__module__.startswith(("torch.", "builtins")):
            yield from (name for name in vars(owner) if not name.startswith("__"))
