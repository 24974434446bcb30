"""What Python tells by a table or a context that Dynamo does not look into: it is asked again before each call.

    convert(x)                   `functools.singledispatch`: which of its functions is for this class
    SCALE.get()                  a `ContextVar`; to set one ends the graph
    isinstance(part, Drawable)   an abstract class, with which the class of the part may be registered later

The answer is an input under guards, as an attribute is, so that what is registered or set later is found.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import _make_key, partial, singledispatch
from inspect import getattr_static
from types import FunctionType, UnionType
from typing import Any, get_args

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.source import CallFunctionNoArgsSource, GlobalSource
from torch._dynamo.variables import BuiltinVariable, UserDefinedObjectVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import UserFunctionVariable

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE
from partitioner.model.functions import is_users
from partitioner.model.source import is_user_code

_ANY: Any = singledispatch(lambda value: value)
_DISPATCHES = _ANY.__code__


def asked(tx: Any, ask: partial[Any], answer: Any) -> Any:
    """The answer to a question, which is put again before each call.

    A question to which the frame has had this very object before is no other one: ``cached(n) is cached(n)``.
    """
    known = vars(tx.output).setdefault("asked", {})  # each question with its last answer, and the name it has in guards
    key = ask.func, _make_key(ask.args, ask.keywords, typed=True)
    if key not in known or known[key][0] is not answer:
        alone: Any = torch._dynamo.disable(ask)  # type: ignore[no-untyped-call]
        known[key] = answer, tx.output.install_global("___asked", alone)  # a number, in whose order guards ask
    return VariableTracker.build(tx, answer, CallFunctionNoArgsSource(GlobalSource(known[key][1])))


@amends(BuiltinVariable, "call_isinstance")
def _is_instance(plain: Callable[..., Any], self: Any, tx: Any, value: Any, kinds: Any) -> Any:
    """What a metaclass takes for an instance may be told by anything, as by the attributes that a protocol asks for.

    So the question ends the graph, but for abstract classes, which look at the class alone, and are asked again.
    """
    for kind in _classes(kinds.as_python_constant()):
        says: Any = getattr_static(type(kind), "__instancecheck__", None) if isinstance(kind, type) else None
        own = isinstance(says, FunctionType) and says is not ABCMeta.__instancecheck__
        if own and is_user_code(says.__code__.co_filename):
            raise Unsupported(f"its metaclass {type(kind).__name__} says what an instance of {kind.__name__} is")
    answer = plain(self, tx, value, kinds)
    return _asked_of_classes(tx, value.python_type(), kinds.as_python_constant(), answer)


@amends(BuiltinVariable, "call_issubclass")
def _is_subclass(plain: Callable[..., Any], self: Any, tx: Any, kind: Any, kinds: Any) -> Any:
    answer = plain(self, tx, kind, kinds)
    if not (kind.is_python_constant() and kinds.is_python_constant()):
        return answer
    return _asked_of_classes(tx, kind.as_python_constant(), kinds.as_python_constant(), answer)


def _classes(asked: Any) -> Iterator[Any]:
    """The classes of which is asked: one, several in a tuple, or a union."""
    if not isinstance(asked, tuple | UnionType):
        yield asked
        return
    for each in asked if isinstance(asked, tuple) else get_args(asked):
        yield from _classes(each)


def _asked_of_classes(tx: Any, kind: type, kinds: Any, answer: Any) -> Any:
    if not any(_may_be_registered(kind, each) for each in _classes(kinds)):
        return answer
    return asked(tx, partial(issubclass, kind, kinds), answer.as_python_constant())


def _may_be_registered(kind: type, other: Any) -> bool:
    """Whether another class may become a base of this one without its knowledge, and one of the two is the user's."""
    if not isinstance(other, ABCMeta) or other in kind.__mro__:
        return False
    return is_users(kind.__module__) or is_users(other.__module__)


@amends(UserFunctionVariable, "call_function")
def _dispatch(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn.__code__ is not _DISPATCHES or not args:
        return plain(self, tx, args, kwargs)
    ask = partial(self.fn.dispatch, args[0].realize().python_type())
    return asked(tx, ask, ask()).call_function(tx, args, kwargs)


@amends(UserDefinedObjectVariable, "call_method")
def _of_context(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if not isinstance(self.value, ContextVar) or name != "get" or kwargs or not all(each.is_python_constant() for each in args):
        return plain(self, tx, name, args, kwargs)
    ask = partial(self.value.get, *(each.as_python_constant() for each in args))
    try:
        answer = ask()
    except LookupError as error:
        if HERE.whole:
            raise  # what forward raises, too
        raise Unsupported(f"{self.value.name} has no value in this context") from error
    return asked(tx, ask, answer)
