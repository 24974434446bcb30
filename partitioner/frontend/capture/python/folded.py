"""Functions of Python's library that Dynamo knows nothing of, and that read nothing but their arguments.

    number = bisect.bisect(bounds, 4)                 of constants: a constant, guarded as its arguments are
    heapq.heappush(beam, (score, step))               of anything: what it does in Python is traced
    best = max(enumerate(scores), key=itemgetter(1))

Dynamo ends a graph at each, for it is written in C or makes classes on its way. With state on several devices that is an error.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable
from functools import cache, cached_property
from types import FunctionType, MethodDescriptorType
from typing import Any, cast

from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    SkipFunctionVariable,
    UserFunctionVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.ctx_manager import NullContextVariable

from partitioner.frontend.capture.amended import amends
from partitioner.model.library import IN_PYTHON, OF_TORCH, least, most
from partitioner.model.source import is_pythons

_MODULES = frozenset(
    """ast base64 binascii cmath colorsys fnmatch html json shlex statistics string textwrap typing unicodedata
    urllib.parse zlib""".split()
)
"""Their functions give the same for the same arguments, and do nothing else."""

_FUNCTIONS = frozenset({bisect.bisect_left, bisect.bisect_right})
"""And so do these."""

_LOOKED_INTO = {**IN_PYTHON, **OF_TORCH}

_LITERAL = (type(None), bool, int, float, complex, str, bytes)
_HELD = (list, tuple, dict, set, frozenset)


@amends(BuiltinVariable, "call_max")
def _call_max(plain: Callable[..., Any], self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    return _traced(tx, most, args, kwargs) if kwargs else plain(self, tx, *args)


@amends(BuiltinVariable, "call_min")
def _call_min(plain: Callable[..., Any], self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    return _traced(tx, least, args, kwargs) if kwargs else plain(self, tx, *args)


@amends(SkipFunctionVariable, "call_function")
def _call_skipped(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    function = self.value
    if _is_known(function) and function in _LOOKED_INTO:
        return _traced(tx, _LOOKED_INTO[function], args, kwargs)
    if isinstance(function, MethodDescriptorType) and args and _kind(args[0]) is function.__objclass__:
        return args[0].call_method(tx, function.__name__, list(args[1:]), kwargs)  # list.copy(x), as x.copy()
    return _folded(tx, function, args, kwargs) or plain(self, tx, args, kwargs)


@amends(UserFunctionVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    return _folded(tx, self.fn, args, kwargs) or plain(self, tx, args, kwargs)


@amends(ConstantVariable, "call_method")
def _call_method(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    kind = type(self.value)
    is_known = kind in _LITERAL and not name.startswith("__") and isinstance(vars(kind).get(name), MethodDescriptorType)
    found = _evaluated(tx, getattr(self.value, name), args, kwargs) if is_known else None
    return found or plain(self, tx, name, args, kwargs)


@amends(InstructionTranslatorBase, "setup_or_before_with")
def _enter(plain: Callable[..., Any], self: Any, instruction: Any) -> Any:
    if self.f_code is cached_property.__get__.__code__:  # whose lock, which Python 3.12 has no more, is for other threads
        self.stack[-1] = NullContextVariable()
    return plain(self, instruction)


def _kind(variable: Any) -> Any:
    """The class of a value of Python's own."""
    try:
        kind = variable.python_type()
    except NotImplementedError:
        return None
    return kind if kind in (*_LITERAL, *_HELD) else None


def _traced(tx: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return tx.inline_user_function_return(UserFunctionVariable(cast(FunctionType, function)), list(args), kwargs)


def _is_known(function: Any) -> bool:
    return isinstance(getattr(function, "__module__", None), str) and isinstance(getattr(function, "__name__", None), str)


@cache
def _is_python_s(module: str) -> bool:
    """Whether a module is one of these, and none of the user's with its name."""
    if module not in _MODULES or module not in sys.modules:
        return False
    file = getattr(sys.modules[module], "__file__", None)
    return file is None or is_pythons(file)


def _folded(tx: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """What one of these functions gives for constants; otherwise nothing. A method reads its object, too."""
    alone = _is_known(function) and "." not in getattr(function, "__qualname__", "")
    is_pure = alone and (_is_python_s(function.__module__) or function in _FUNCTIONS)
    return _evaluated(tx, function, args, kwargs) if is_pure else None


def _evaluated(tx: Any, function: Any, args: Any, kwargs: Any) -> Any:
    if not all(each.is_python_constant() for each in (*args, *kwargs.values())):
        return None
    given = [each.as_python_constant() for each in args]
    named = {name: each.as_python_constant() for name, each in kwargs.items()}
    if not _is_literal([*given, *named.values()]):
        return None
    try:
        found = function(*given, **named)
    except Exception as error:
        if type(error).__module__ != "builtins":  # which may want other arguments than it shows
            return None
        raise_observed_exception(type(error), tx, args=list(error.args))
    return VariableTracker.build(tx, found) if _is_literal(found) else None


def _is_literal(value: Any) -> bool:
    if type(value) in _HELD:
        return all(map(_is_literal, [*value.items()] if type(value) is dict else value))
    return type(value) in _LITERAL
