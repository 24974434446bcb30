"""What can be partitioned: the first thing that a user can get wrong."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch import nn

from partitioner.errors import InputError
from partitioner.model.state import all_state


def accepted(model: Any, *, loaded: bool = True) -> nn.Module:
    """What can be partitioned: a plain module, with parameters that exist, and have values unless ``loaded`` is false.

    Raises:
        InputError: it is something else.
    """
    if isinstance(model, torch._dynamo.OptimizedModule):
        warnings.warn("partition() takes the model inside of torch.compile(model); that compilation is not used", stacklevel=3)
        model = model._orig_mod
    if not isinstance(model, nn.Module):
        raise InputError(f"a model is a torch.nn.Module, and this is of type {type(model).__name__}")
    if inspect.isgeneratorfunction(model.forward):
        raise InputError(
            f"{type(model).__name__}.forward is a generator function; return a list or a tuple instead of yielding"
        )
    if inspect.iscoroutinefunction(model.forward) or inspect.isasyncgenfunction(model.forward):
        raise InputError(
            f"{type(model).__name__}.forward is declared with async def, and a program has no event loop; compute in a plain "
            "forward, and await around it"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("a ScriptModule holds no Python to trace; partition the module that it was made from")
    state = all_state(model)
    lazy = [name for name, value in state.items() if nn.parameter.is_lazy(value)]
    if lazy:
        raise InputError(f"{lazy[0]} has no shape yet, because its module is lazy; call the model once before partition()")
    meta = [name for name, value in state.items() if value.is_meta and loaded]
    if meta:
        raise InputError(
            f"{meta[0]} is on the meta device and has no values. Give weights='model.safetensors', or load the model: "
            "model.to_empty(device='cpu'), then load_state_dict(...); or only plan it: `python -m partitioner inspect model.py`"
        )
    inner = [
        name or "the model" for name, part in model.named_modules() if getattr(part, "_compiled_call_impl", None) is not None
    ]
    if inner:
        warnings.warn(f"{inner[0]} was compiled by torch.compile; inside of programs its ops run as they are", stacklevel=3)
    return model
