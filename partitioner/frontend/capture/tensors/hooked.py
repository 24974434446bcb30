"""Hooks that forward gives to what it computes: they are called in backward, and read then what their names stand for.

Dynamo looks into such a hook where it is given, and what the hook reads is what it was there: a number on the module, an item
of a dictionary, a variable of a loop. So a hook is looked into if it reads its gradient, functions of torch, and variables that
are set once, to tensors or constants; and any other one ends the graph.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dis import get_instructions
from inspect import isroutine
from types import CodeType, ModuleType
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.variables import (
    ConstantVariable,
    NestedUserFunctionVariable,
    TensorVariable,
    UserFunctionVariable,
    UserMethodVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable

from partitioner.frontend.capture.amended import amends, method_of_tensors
from partitioner.model.functions import is_users

_OPTIONS = frozenset(("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled"))
"""Functions of torch that say otherwise in backward."""


@amends(*method_of_tensors("register_hook"))
def _register_hook(plain: Callable[..., Any], self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    hooks = [each.realize() for each in (*args, *kwargs.values()) if isinstance(each, VariableTracker)]
    if not self.source and not all(_reads_nothing_else(tx, hook) for hook in hooks):
        raise Unsupported("a hook is given to what forward computes, and reads in backward what may have changed by then")
    return plain(self, tx, *args, **kwargs)


def _reads_nothing_else(tx: Any, hook: Any) -> bool:
    """Whether a hook reads what is the same in backward."""
    if isinstance(hook, UserMethodVariable) or not isinstance(hook, NestedUserFunctionVariable | UserFunctionVariable):
        return False
    code, names = hook.get_code(), hook.get_globals()
    closure: Any = getattr(hook, "closure", None)
    cells = closure.unpack_var_sequence(tx) if closure else []
    return (
        not any(isinstance(each, CodeType) for each in code.co_consts)
        and not _OPTIONS.intersection(code.co_names)
        and all(_is_no_users(names.get(name, vars(builtins).get(name))) for name in _globals_of(code))
        and len(cells) == len(code.co_freevars)  # those of a function that was there before are known to nobody
        and all(_stays(tx, code, name, cell) for name, cell in zip(code.co_freevars, cells, strict=True))
    )


def _globals_of(code: CodeType) -> Iterator[str]:
    return (each.argval for each in get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def _is_no_users(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return not is_users(value.__name__)
    return (isroutine(value) or isinstance(value, type)) and not is_users(getattr(value, "__module__", None))


def _stays(tx: Any, code: CodeType, name: str, cell: Any) -> bool:
    """Whether a variable of the function that made a hook is a tensor or a constant, and is set once."""
    content = tx.output.side_effects.load_cell(cell).realize()
    if not isinstance(content, ConstantVariable | SymNodeVariable | TensorVariable):
        return False
    while tx is not None and code not in tx.f_code.co_consts:
        tx = getattr(tx, "parent", None)
    made = [] if tx is None else list(get_instructions(tx.f_code))
    sets = sum(each.opname == "STORE_DEREF" and each.argval == name for each in made)
    return sets == 0 or (sets == 1 and not any("JUMP_BACKWARD" in each.opname for each in made))
