"""Guards that Dynamo leaves out.

It compares constants by ``==``, and to that 0.0 is -0.0 and ``(2,)`` is ``(2.0,)``. Only values for which this matters are
looked at again, and only where they are the user's: no layer of torch's own tells them apart. A forward that reads the
environment depends on all of it. Hooks for all modules come and go, and methods of classes may be replaced.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch._guards import TracingContext
from torch.nn.modules import module as everywhere

from partitioner.frontend.capture.here import Watched
from partitioner.frontend.capture.sharing import distinct, found_at, name_of

_KINDS = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH"})
_LAST = re.compile(r"(?:\.\w+|\[[^\[\]]*\])$")


def watched(scope: Mapping[str, Any], root: nn.Module, whole: bool) -> tuple[Watched, Watched]:
    """What to look at again, of all that the frame being traced depends on: in the frame, and in the process.

    Called by a backend. Dynamo's guard on hooks for saved tensors is taken back: ops run under those of the call, and it is a
    function of Python, which costs time in each call and loses an interrupt that comes meanwhile.

    Args:
        scope: ``L`` and ``G`` of that frame.
        root: the model.
        whole: whether the frame cannot run as it is.
    """
    context = TracingContext.try_get()
    if context is None:
        return (), ()
    inner = context.guards_context.dynamo_guards.inner
    inner -= {guard for guard in inner if guard.create_fn_name() == "AUTOGRAD_SAVED_TENSORS_HOOKS"}
    guards = [(name_of(guard), guard.create_fn_name()) for guard in inner]
    around = (*_environment(guards), *_global_hooks(guards, whole), *_methods(root, set(context.traced_code)))
    return (*_ambiguous(guards, dict(scope)), *distinct(scope)), around


def _environment(guards: list[tuple[str, str]]) -> Iterator[Callable[[dict[str, Any]], bool]]:
    if any(".environ" in name for name, _ in guards):
        yield _EnvironmentIs(tuple(os.environ.items()))


@dataclass(frozen=True)
class _EnvironmentIs:
    """All variables of the environment."""

    then: tuple[tuple[str, str], ...]

    def __call__(self, _scope: object) -> bool:
        return tuple(os.environ.items()) == self.then


def _ambiguous(guards: list[tuple[str, str]], scope: dict[str, Any]) -> Iterator[Callable[[dict[str, Any]], bool]]:
    for name in sorted({name for name, kind in guards if kind in _KINDS}):
        code, value = found_at(name, scope)
        if code and _has_twins(value) and not type(found_at(_LAST.sub("", name), scope)[1]).__module__.startswith("torch."):
            yield _is_still(code, value)


def _is_still(code: CodeType, value: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda scope: same(eval(code, scope), value)


def _global_hooks(guards: list[tuple[str, str]], whole: bool) -> Iterator[Callable[[dict[str, Any]], bool]]:
    """Hooks for all modules, if a module is called: Dynamo looks at them, and guards that they are in a dictionary."""
    if any("._global_" in name for name, _ in guards):
        yield _HooksAre(_hooks(), whole)


_HOOKS = (
    everywhere._global_forward_hooks,
    everywhere._global_forward_pre_hooks,
    everywhere._global_backward_hooks,
    everywhere._global_backward_pre_hooks,
)


def _hooks() -> tuple[int, ...]:
    return tuple(number for held in _HOOKS for number in held)


@dataclass(frozen=True)
class _HooksAre:
    """Tools that count FLOPs or memory register some together with a dispatch mode, under which nothing can be traced."""

    then: tuple[int, ...]
    whole: bool

    def __call__(self, _scope: object) -> bool:
        if self.then or any(_HOOKS):
            return _hooks() == self.then or (self.whole and torch._C._len_torch_dispatch_stack() > 0)
        return True


def _methods(root: nn.Module, traced: Collection[CodeType]) -> Iterator[Callable[[dict[str, Any]], bool]]:
    """The methods of the model's classes that were traced."""
    found = dict.fromkeys(
        (kind, name, getattr(kind, name), _function(value), _function(value).__code__)
        for kind in dict.fromkeys(type(module) for module in root.modules())
        for owner in kind.__mro__
        if owner is not nn.Module
        for name, value in vars(owner).items()
        if getattr(_function(value), "__code__", None) in traced
    )
    if found:
        yield _MethodsAre(tuple(found))


@dataclass(frozen=True)
class _MethodsAre:
    """Classes, names of their methods, and what these were: also their code, which notebooks replace when a file is edited."""

    then: tuple[tuple[type, str, Any, Any, CodeType], ...]

    def __call__(self, _scope: object) -> bool:
        for kind, name, method, function, code in self.then:
            found = getattr(kind, name, None)
            if found is not method and not (type(found) is MethodType and found == method):  # a class method is bound anew
                return False
            if function.__code__ is not code:
                return False
        return True


def _function(value: Any) -> Any:
    """What runs when an attribute of a class is used, if that can be told from its identity."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value if isinstance(value, FunctionType) else None


def _has_twins(value: Any) -> bool:
    """Whether there is another value that is equal and not the same."""
    if type(value) in (tuple, set, frozenset):
        return any(type(item) in (int, float, bool, complex) or _has_twins(item) for item in value)
    return type(value) is float and value == 0.0


def check(found: Watched, module_globals: dict[str, Any]) -> Callable[[Any], bool]:
    """A guard: whether everything watched is what it was, for a frame's local variables."""

    def holds(local_variables: Any) -> bool:
        scope = {"L": local_variables, "G": module_globals}
        return all(condition(scope) for condition in found)

    return holds


def same(one: Any, other: Any) -> bool:
    """Whether two constants are equal, of one type, and zeros of one sign.

    Example:
        >>> same(0.0, -0.0), same((2,), (2.0,)), same((1, 0.5), (1, 0.5))
        (False, False, True)
    """
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) in (set, frozenset):
        return {(type(item), item) for item in one} == {(type(item), item) for item in other}
    return one == other and (type(one) is not float or math.copysign(1, one) == math.copysign(1, other))
