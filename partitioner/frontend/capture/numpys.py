"""numpy: its numbers are constants that stay what they are, its arrays end the graph.

Dynamo takes both for tensors: a number that numpy computes would come out as an array, an array would go where only tensors
may, sums would be torch's, and an array that is read-only would be so no more. What numpy makes of constants is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.misc import ConstantLikeVariable, NumpyVariable, get_np_to_tnp_map

from partitioner.frontend.capture.amended import amended
from partitioner.frontend.capture.names import name_of

_GUARDED = (np.integer, np.floating)
_NUMBERS = (*_GUARDED, np.bool_)


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


@contextmanager
def numpy_kept(whole: bool) -> Iterator[None]:
    """While a frame is traced: numpy computes with its numbers, and arrays end the graph.

    Args:
        whole: whether the frame must be one graph. Otherwise a number that comes with a call ends it, too: there is another
            one in each call, and a program for each would be too many.
    """
    create, literal = ConstantVariable.create, ConstantVariable.is_base_literal
    wrap, compute, get = VariableBuilder._wrap, NumpyVariable.call_function, ConstantLikeVariable.var_getattr

    def constant(value: Any, **options: Any) -> Any:
        return _Number(value, **options) if isinstance(value, _NUMBERS) else create(value, **options)

    def is_literal(value: Any) -> bool:
        return isinstance(value, _NUMBERS) or literal(value)

    def wrapped(self: Any, value: Any) -> Any:
        if not isinstance(value, np.ndarray | np.generic):
            return wrap(self, value)
        if not isinstance(value, _GUARDED) or math.isnan(value) or not (whole or _is_of_the_model(self.source)):
            raise Unsupported(f"a {type(value).__name__} of numpy's is used")
        install_guard(self.source.make_guard(GuardBuilder.EQUALS_MATCH))
        return _Number(value, source=self.source)

    def computed(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        found = _computed(self.value, args, kwargs)
        return compute(self, tx, args, kwargs) if found is None else _Number(found)

    def attribute(self: Any, tx: Any, name: str) -> Any:
        found = getattr(self.value, name, None)
        return _Number(found) if isinstance(found, _NUMBERS) else get(self, tx, name)  # as the eps of np.finfo

    with (
        amended(ConstantVariable, create=staticmethod(constant), is_base_literal=staticmethod(is_literal)),
        amended(VariableBuilder, _wrap=wrapped),
        amended(NumpyVariable, call_function=computed),
        amended(ConstantLikeVariable, var_getattr=attribute),
    ):
        yield


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
