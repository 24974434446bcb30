"""Hooks that forward gives to what it computes: they are called in backward, and read then what their names stand for.

Dynamo looks into such a hook where it is given, and what the hook reads is what it was there: a number on the module, an item
of a dictionary, a variable of a loop. So a hook is looked into if it reads its gradient, functions of torch, and variables that
are set once, to tensors or constants. One that forward finds somewhere, as a method of the model's, is given as it is where one
graph must be all of forward, on several devices; and any other one ends the graph.

That a gradient is retained is an op on several devices, of the very tensor, and ends the graph on lanes.

A module with hooks for backward has them around it: what goes in and what comes out passes through two functions of autograd,
which know the same object of torch's. On several devices these are ops of the graph, and what they know is made in each call,
of the hooks that the module has then. Nothing else runs beside them, and one thread issues all, so that hooks are called in
eager's order; on lanes, of which each thread has an order of its own, the graph ends.
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable, Iterator
from dis import get_instructions
from inspect import isroutine
from types import CodeType, MethodType, ModuleType
from typing import Any

from torch._dynamo import external_utils
from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import (
    BackwardHookVariable,
    ConstantVariable,
    LambdaVariable,
    NestedUserFunctionVariable,
    TensorVariable,
    TupleVariable,
    UserFunctionVariable,
    UserMethodVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.utils.hooks import BackwardHook

from partitioner.frontend.capture.amended import amends, method_of_tensors
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.names import found_at, holds_at, name_of
from partitioner.model.functions import is_users
from partitioner.model.hooks import Hooking, hooks_of, passing

_OPTIONS = frozenset(("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled"))
"""Functions of torch that say otherwise in backward."""

_HOOKS_ARE_FUNCTIONS = hasattr(external_utils, "_ApplyBackwardHook")
"""Whether Dynamo makes another tensor of one that gets a hook, as in torch 2.11, whose gradient has not been through it."""


@amends(*method_of_tensors("register_hook"))
def _register_hook(plain: Callable[..., Any], self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    hooks = [each.realize() for each in (*args, *kwargs.values()) if isinstance(each, VariableTracker)]
    if self.source or all(_reads_nothing_else(tx, hook) for hook in hooks):
        return plain(self, tx, *args, **kwargs)
    found = _found(hooks[0]) if len(hooks) == 1 and HERE.apart else None
    if found is None:
        raise Unsupported("a hook is given to what forward computes, and reads in backward what may have changed by then")
    wrap_fx_proxy(tx, tx.output.create_proxy("call_function", Hooking(found), (self.as_proxy(),), {}))
    return VariableTracker()  # nobody may ask for the handle


@amends(TensorVariable, "method_attr_retain_grad")
def _retain_grad(plain: Callable[..., Any], self: Any, tx: Any) -> Any:
    if self.source or not HERE.apart or _HOOKS_ARE_FUNCTIONS:
        return plain(self, tx)
    return LambdaVariable(
        lambda: wrap_fx_proxy(tx, tx.output.create_proxy("call_method", "retain_grad", (self.as_proxy(),), {}))
    )


def _found(hook: Any) -> Any:
    """What gives a hook that was there before, of which is asked before each call whether it is still that one."""
    code, value = found_at(name_of(hook.source), HERE.scope) if hook.source else (None, None)
    if code is None or not callable(value):
        return None
    held = weakref.WeakMethod(value) if isinstance(value, MethodType) else lambda: value
    HERE.decisions["hook", name_of(hook.source)] = holds_at(code, lambda now: now == held())
    return held


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


@amends(BackwardHookVariable, "create")
def _around_module(plain: Callable[..., Any], tx: Any, module: Any, *hooks: Any) -> Any:
    if not HERE.apart or module.source is None:
        return plain(tx, module, *hooks)
    install_guard(module.source.make_guard(GuardBuilder.ID_MATCH))
    return _Around(tx.output.create_proxy("call_function", hooks_of(module.value), (), {}), module, *hooks)


class _Around(BackwardHookVariable):
    """What a module's hooks know of a call, as a value of the graph."""

    def __init__(self, proxy: Any, *parts: Any) -> None:
        super().__init__(proxy, *parts)
        proxy.node.meta["example_value"] = BackwardHook(None, (), ())

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        """What torch asks of it: to let go in, and to let come out."""
        return _passed(tx, self.proxy, name, *args)


def _passed(tx: Any, hooks: Any, method: str, value: Any) -> Any:
    """What goes into a module, or comes out of it, behind its hooks."""
    value = value.realize()
    several = issubclass(value.python_type(), tuple)
    if not (value.is_tensor() or several):
        return value
    items = [each.realize() for each in (value.unpack_var_sequence(tx) if several else [value])]
    given = tuple(each.as_proxy() if each.is_tensor() else None for each in items)
    passed = wrap_fx_proxy(tx, tx.output.create_proxy("call_function", passing, (hooks, method, given), {}))
    made = [new if old.is_tensor() else old for new, old in zip(passed.unpack_var_sequence(tx), items, strict=True)]
    if several and value.python_type() is not tuple:
        return VariableTracker.build(tx, value.python_type()).call_function(tx, made, {})
    return TupleVariable(made) if several else made[0]
