"""Whether this thread traces for us. Read by code that Dynamo traces through, so its file must not be one that Dynamo skips."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo


class _Here(threading.local):
    ours = False


HERE = _Here()
"""``HERE.ours``: whether a tracer of ours is at work."""


def routed(name: str, kind: type, given: Mapping[str, Any]) -> Any:
    """A method of a partitioned module, whose model is of class ``kind``.

    A tracer of ours that meets it sees the model's own method, or the class's if the module was ``given`` that one in its
    place; torch.compile goes past it.
    """

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() and _sees_the_model():
            own = self.__dict__.get(name)
            of_class = own is None or own is given.get(name)
            return getattr(kind, name)(self, *args, **kwargs) if of_class else own(*args, **kwargs)
        programs = self._partitioner_programs
        result = programs(name, args, kwargs)
        return self if result is programs.original else result  # as in `model = model.frozen()`

    return call


@torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
def _sees_the_model() -> bool:
    """Called while tracing, and its result is for good."""
    if not HERE.ours:
        warnings.warn("torch.compile leaves a partitioned module as it is: its programs run as they are", stacklevel=2)
    return HERE.ours
