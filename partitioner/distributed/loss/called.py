"""What a user's functions can be called with, as far as they say."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from partitioner.distributed.ranks import first_speaks
from partitioner.errors import InputError


@first_speaks()
def refuse_no_loss(function: Any, count: Any) -> None:
    """Refuse what cannot be called with a model's output, and as a count what cannot be called.

    Raises:
        InputError: says what it is.
    """
    if isinstance(function, type):
        raise InputError(f"loss_fn is the class {function.__name__}: give an instance of it, {function.__name__}()")
    if not callable(function):
        raise InputError(
            f"loss_fn is of type {type(function).__name__}: give a function of the model's output and, if it takes one, of a "
            "target; of a model that returns its loss, loss_fn=lambda output: output. For outputs alone, call inference"
        )
    if count is not None and not callable(count):
        raise InputError(
            f"count_fn is of type {type(count).__name__}: give a function of a microbatch's target, such as "
            "count_fn=lambda target: (target != -100).sum()"
        )
    takes = parameters_of(function)
    if takes is not None and all(each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in takes):
        raise InputError("loss_fn takes nothing by place, and is called with the model's output and, if it takes one, a target")
    needed = [each for each in takes or () if each.default is each.empty]
    named = [each.name for each in needed if each.kind is each.KEYWORD_ONLY]
    if named or sum(each.kind in (0, 1) for each in needed) > 2:
        raise InputError(
            f"loss_fn needs {', '.join(each.name for each in needed)}, and is called with the model's output and, if it takes "
            "one, a target, by place: let the target be a tuple or dict of all that it needs, or bind the rest with "
            "functools.partial"
        )


def fits(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a function can be called with these arguments, as far as it says."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def parameters_of(function: Any) -> list[inspect.Parameter] | None:
    """What a function takes, if it says so. A decorator that hands on whatever it is given takes what it decorates takes."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = [*inspect.signature(called, follow_wrapped=False).parameters.values()]
    except (TypeError, ValueError):
        return None
    inner = getattr(called, "__wrapped__", None)
    if inner is None or not all(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        return parameters
    return parameters_of(inner.__get__(called.__self__) if inspect.ismethod(called) else inner)
