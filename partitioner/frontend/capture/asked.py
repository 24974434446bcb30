"""What Python tells by a table or a context that Dynamo does not look into: it is asked again before each call.

    convert(x)                   `functools.singledispatch`: which of its functions is for this class
    SCALE.get()                  a `ContextVar`; to set one ends the graph

The answer is an input under guards, as an attribute is, so that what is registered or set later is found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, singledispatch
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.source import CallFunctionNoArgsSource, GlobalSource
from torch._dynamo.variables import UserDefinedObjectVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import UserFunctionVariable

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE

_ANY: Any = singledispatch(lambda value: value)
_DISPATCHES = _ANY.__code__


def asked(tx: Any, ask: Callable[[], Any], answer: Any) -> Any:
    """The answer to a question, which is put again before each call."""
    name = tx.output.install_global("___asked", ask)  # a number, in whose order guards ask
    return VariableTracker.build(tx, answer, CallFunctionNoArgsSource(GlobalSource(name)))


@amends(UserFunctionVariable, "call_function")
def _dispatch(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn.__code__ is not _DISPATCHES or not args:
        return plain(self, tx, args, kwargs)
    ask: Any = torch._dynamo.disable(partial(self.fn.dispatch, args[0].realize().python_type()))  # type: ignore[no-untyped-call]
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
