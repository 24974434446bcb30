"""numpy: its numbers are constants that stay what they are, its arrays end the graph.

Dynamo takes both for tensors: a number that numpy computes would come out as an array, an array would go where only tensors
may, sums would be torch's, and an array that is read-only would be so no more. What numpy makes of constants is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import ConstantVariable, TorchInGraphFunctionVariable
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.misc import ConstantLikeVariable, NumpyVariable, get_np_to_tnp_map

from partitioner.frontend.capture.amended import GETATTR, amends
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.names import name_of

_GUARDED = (np.integer, np.floating)
_NUMBERS = (*_GUARDED, np.bool_)
_MAKERS = (torch.tensor, torch.as_tensor, torch.asarray)


class _Number(ConstantVariable):
    """A number of numpy's. To ops of torch it is a number of Python's, as in eager."""

    def __init__(self, value: Any, **options: Any) -> None:
        super().__init__(value.item(), **options)
        self.value = value

    def as_proxy(self) -> Any:
        """What an op gets."""
        return self.value.item()

    def reconstruct(self, codegen: Any) -> None:
        """Load the number."""
        codegen.append_output(codegen.create_load_const_unchecked(self.value))


@amends(ConstantVariable, "create")
def _create(plain: Callable[..., Any], value: Any, **options: Any) -> Any:
    return _Number(value, **options) if isinstance(value, _NUMBERS) else plain(value, **options)


@amends(ConstantVariable, "is_base_literal")
def _is_literal(plain: Callable[..., bool], value: Any) -> bool:
    return isinstance(value, _NUMBERS) or plain(value)


@amends(VariableBuilder, "_wrap")
def _wrap(plain: Callable[..., Any], self: Any, value: Any) -> Any:
    """An array ends the graph. So does a number that comes with a call, unless the frame must be one graph.

    There is another one in each call, and a program for each would be too many.
    """
    if not isinstance(value, np.ndarray | np.generic):
        return plain(self, value)
    if not isinstance(value, _GUARDED) or math.isnan(value) or not (HERE.whole or _is_of_the_model(self.source)):
        raise Unsupported(f"a {type(value).__name__} of numpy's is used")
    install_guard(self.source.make_guard(GuardBuilder.EQUALS_MATCH))
    return _Number(value, source=self.source)


@amends(NumpyVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    found = _computed(self.value, args, kwargs)
    return plain(self, tx, args, kwargs) if found is None else _Number(found)


@amends(TorchInGraphFunctionVariable, "call_function")
def _tensor_of(plain: Callable[..., Any], self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A tensor that is made of numpy's numbers has their dtype, and not the one that Python's have."""
    if self.value in _MAKERS and len(args) < 2 and "dtype" not in kwargs:
        given: Any = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        if _is_of_numbers(given):
            if not given.is_python_constant():
                raise Unsupported("a tensor is made of numbers of numpy's and others")
            dtype = torch.tensor(given.as_python_constant(), device="cpu").dtype
            kwargs = {**kwargs, "dtype": ConstantVariable.create(dtype)}
    return plain(self, tx, args, kwargs)


def _is_of_numbers(given: Any) -> bool:
    """Whether a number of numpy's is given, or stands in a list."""
    return isinstance(given, _Number) or (isinstance(given, BaseListVariable) and any(map(_is_of_numbers, given.items)))


@amends(ConstantLikeVariable, GETATTR)
def _attribute(plain: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    found = getattr(self.value, name, None)
    return _Number(found) if isinstance(found, _NUMBERS) else plain(self, tx, name)  # as the eps of np.finfo


def _computed(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The number that a function of numpy's makes of constants; ``None`` if it is none, or is drawn, or if numpy warns."""
    known = get_np_to_tnp_map().get(function)
    if known is None or known.__module__ == "torch._numpy.random":
        return None
    if not all(each.is_python_constant() for each in (*args, *kwargs.values())):
        return None
    try:
        with np.errstate(all="raise"):
            found = function(
                *(each.as_python_constant() for each in args),
                **{name: each.as_python_constant() for name, each in kwargs.items()},
            )
    except Exception:  # it is called again where the graph ends, and raises there
        return None
    return found if isinstance(found, _NUMBERS) else None


def _is_of_the_model(source: Any) -> bool:
    """Whether a value is no argument, and was not computed before the frame began either."""
    name = name_of(source)
    return not name.startswith("L[") or name.startswith("L['self']")
