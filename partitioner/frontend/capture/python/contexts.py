"""Contexts that forward enters and has not made: where one graph must be all of it, they are looked into like those it makes.

    with self.timer:                     an object of the user's: its ``__enter__`` and ``__exit__`` are traced
    with x.device: torch.ones(8)         what makes tensors is given the device, as torch's own mode gives it

Dynamo ends the graph at both.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getattr_static
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import (
    ConstantVariable,
    TorchInGraphFunctionVariable,
    UserDefinedObjectVariable,
)
from torch._dynamo.variables.ctx_manager import ContextWrappingVariable, GenericContextWrappingVariable
from torch.utils._device import _device_constructors

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE
from partitioner.model.functions import is_users


class _Entered(GenericContextWrappingVariable):
    """An object that was there before."""

    def __init__(self, held: Any) -> None:
        super().__init__(held.value)
        self.held = held

    def enter(self, tx: Any) -> Any:
        return self.held.call_method(tx, "__enter__", [], {})

    def exit(self, tx: Any, *args: Any) -> Any:
        tx.active_generic_context_managers.pop()
        return self.held.call_method(tx, "__exit__", list(args), {})


class _OnDevice(ContextWrappingVariable):
    """A device, which holds for the innermost block that names one."""

    def __init__(self, device: Any) -> None:
        super().__init__([device.as_python_constant()])
        self.device = device

    def enter(self, tx: Any) -> Any:
        _devices(tx).append(self.device)
        return self.device

    def exit(self, tx: Any, *args: Any) -> Any:
        _devices(tx).pop()
        return ConstantVariable.create(None)


def _devices(tx: Any) -> list[Any]:
    """Those that are entered, the innermost last."""
    return vars(tx.output).setdefault("devices", [])  # type: ignore[no-any-return]


@amends(InstructionTranslatorBase, "setup_or_before_with")
def _with(plain: Callable[..., None], self: Any, instruction: Any) -> None:
    held = self.stack[-1].realize()
    if HERE.whole and held.is_python_constant() and isinstance(held.as_python_constant(), torch.device):
        self.stack[-1] = _OnDevice(held)
    elif HERE.whole and _is_there(held) and _is_traceable(held.python_type()):
        self.stack[-1] = _Entered(held)
    plain(self, instruction)


def _is_there(held: Any) -> bool:
    return isinstance(held, UserDefinedObjectVariable) and not isinstance(held, GenericContextWrappingVariable)


def _is_traceable(kind: type) -> bool:
    """Whether objects of a class are entered and left by functions of the user's."""
    methods = [getattr_static(kind, name, None) for name in ("__enter__", "__exit__")]
    return is_users(kind.__module__) and all(isinstance(method, FunctionType) for method in methods)


@amends(TorchInGraphFunctionVariable, "call_function")
def _make(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if not _devices(tx):
        return plain(self, tx, args, kwargs)
    if self.value is torch.get_default_device:
        raise Unsupported("it asks for the device of tensors that name none, where a device is entered")
    named = kwargs.get("device")
    if self.value in _device_constructors() and (named is None or named.is_constant_match(None)):
        kwargs = {**kwargs, "device": _devices(tx)[-1]}
    return plain(self, tx, args, kwargs)
