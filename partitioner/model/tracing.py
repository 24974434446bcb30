"""Whether this thread traces for us. Read by code that Dynamo traces through, so its file must not be one that Dynamo skips."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.exc import ShortenTraceback
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.compiler import is_dynamo_compiling

from partitioner.errors import TraceError


class _Here(threading.local):
    ours = False


HERE = _Here()
"""``HERE.ours``: whether a tracer of ours is at work."""


def routed(name: str, kind: type, given: Mapping[str, Any]) -> Any:
    """A method of a partitioned module, whose model is of class ``kind``.

    A tracer of ours that meets it sees the model's own method, or the class's if the module was ``given`` that one in its
    place; torch.compile goes past it, unless it wants one graph (``fullgraph=True``, a strict `torch.export`). Its code is a
    copy, for torch counts what it compiles by code, and would refuse the ninth module. What takes the place of the class's
    method may call it with the model itself.
    """

    plain = inspect.getattr_static(kind, name)
    held = None if isinstance(plain, FunctionType) else plain  # looked up in each call, for the class may be given another one

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        programs = getattr(type(self), "_partitioner_programs", None)
        if programs is None:
            return plain(self, *args, **kwargs) if held is None else held.__get__(self, kind)(*args, **kwargs)
        if is_dynamo_compiling() and _sees_the_model(kind.__name__, programs.on_one):
            own = self.__dict__.get(name)
            of_class = own is None or own is given.get(name)
            if not of_class:
                return own(*args, **kwargs)
            return getattr(kind, name)(self, *args, **kwargs) if held is None else held.__get__(self, kind)(*args, **kwargs)
        found = [programs(name, args, kwargs) if name == "forward" else programs.called(self, name, args, kwargs)]
        return self if found[0] is programs.original else found.pop()  # as in `model = model.frozen()`; frames may be kept

    call.__code__ = call.__code__.replace()
    return call


class Refused(ShortenTraceback, TraceError):
    """One that Dynamo passes on as it is."""


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _sees_the_model(name: str, on_one: bool) -> bool:
    """Called while tracing, and its result is for good."""
    whole = InstructionTranslator.current_tx().one_graph
    if not HERE.ours and not whole:
        warnings.warn("torch.compile leaves a partitioned module as it is: its programs run as they are", stacklevel=2)
    if not HERE.ours and whole and not on_one:
        raise Refused(cannot_be_traced(name), first_useful_frame=None)
    return HERE.ours or whole


def cannot_be_traced(name: str) -> str:
    """Why a module whose state lies on several devices is no graph for others."""
    return (
        f"{name} is traced by torch.export, torch.jit or a torch.compile that wants one graph, which take ops as they lie, and "
        "its state lies on several devices. For that trace the model before partition(), or a partition of it on one device."
    )
