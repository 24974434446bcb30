"""Methods of a partitioned module: those of its model's class, run through programs.

forward, generate, encode ...   speak of submodules, which would run eagerly if they were called as they lie
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import skip_code

from partitioner.model.functions import names_in
from partitioner.model.tracing import routed

STOPS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
"""Flags of code that stops in the middle and goes on later."""

_BOUND: Callable[..., Any] = MethodType if torch.__version__ < "2.12" else FunctionType.__get__
"""A method of a function and an object, made so that Dynamo sees the function; of the older one, so that it does not warn."""


class Method:
    """A method of the model's class that runs through programs, unless the module was given one of its own in its place.

    The model has that one, too, for its other methods to find; but for ``forward``, to which what took its place may go back.
    """

    def __init__(self, name: str, kind: type, plain: Callable[..., Any], given: dict[str, Any]) -> None:
        self.name, self.kind, self.given = name, kind, given
        self.of_class = inspect.getattr_static(kind, name)
        self.own: Callable[..., Any] | None = None
        self.call = routed(name, kind, given)
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
            setattr(self.call, attribute, getattr(plain, attribute, getattr(self.call, attribute)))
        function = plain.__func__ if isinstance(plain, MethodType) else None
        if function is not None:
            self.call.__wrapped__ = function  # for people, Trainers and torch.fx
        with suppress(TypeError, ValueError):  # some callables have no signature
            self.call.__signature__ = inspect.signature(function) if function else _with_self(inspect.signature(plain))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            replaced = inspect.getattr_static(self.kind, self.name, self.of_class) is not self.of_class
            return getattr(self.kind, self.name) if replaced else self.call
        own = self.own if self.name == "forward" else instance.__dict__.get(self.name)
        if own is None or (self.name != "forward" and own is not self.given.get(self.name)):
            return _BOUND(self.call, instance)
        return own

    def __set__(self, instance: Any, value: Any) -> None:
        if self.name == "forward":
            self.own = value
        else:
            instance.__dict__[self.name] = self.given[self.name] = value

    def __delete__(self, instance: Any) -> None:
        if self.own is None and self.name not in instance.__dict__:
            raise AttributeError(f"{type(instance).__name__!r} object has no attribute {self.name!r}")
        instance.__dict__.pop(self.name, None)
        self.own = None


skip_code(Method.__get__.__code__)  # a torch.compile around begins at the method that it gives


def _with_self(signature: inspect.Signature) -> inspect.Signature:
    """The signature of a bound method as that of the function."""
    name = "self" if "self" not in signature.parameters else "module"
    first = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[first, *signature.parameters.values()])


def methods_with_parts(original: nn.Module) -> Iterator[tuple[str, FunctionType]]:
    """Methods that the model's classes define and that speak of its submodules: called as they lie, those would run eagerly.

    Generators and coroutines stay as they are: they stop in the middle, and go on when their caller asks.
    """
    parts = set(original._modules)
    for owner in type(original).__mro__:
        if owner is nn.Module:
            return
        for name, method in vars(owner).items():
            inherited = hasattr(nn.Module, name) or name.startswith("_")
            if not isinstance(method, FunctionType) or inherited or method.__code__.co_flags & STOPS:
                continue
            if inspect.getattr_static(type(original), name) is not method:
                continue  # a nearer class has something else under this name
            if parts & set(names_in(method.__code__)):
                yield name, method
