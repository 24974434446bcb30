"""Calls of functions that do otherwise in eager than where Dynamo traces them: they end the graph, and run as they are.

- Functions with a cache, `functools.lru_cache`: the user's, and those of packages that give tensors, draw random numbers, or
  write something. Dynamo traces them as if there were no cache: a second call would give other objects than the first, other
  random numbers, write once more, and follow what they read besides their arguments. What a function of the user's gives for
  constants is looked up instead, as an attribute is: the function is called before each call, which its cache answers.
- Functions of the user's that are marked with `torch.compiler.assume_constant_result`. Dynamo keeps what the first call gave;
  here such a function is traced like any other, under guards on what it reads.
- Functions of `torch.jit.script`, under autocast. TorchScript goes by rules of its own there: ``x * 2`` of a bfloat16 gives
  float32, and in Python bfloat16. Dynamo traces the Python that the function was made of, and so would miss it.
- Gradients by `torch.func` under inference mode: in eager there are some, and of what Dynamo makes of them torch raises.
- Whether a tensor has a gradient, asked under inference mode of one that was made with gradients enabled: it has none, and
  Dynamo, which leaves that mode while it traces, says that it has.
- ``max`` and ``min`` of tensors, which ask them which one is larger, and give that very one, or the number that it was held
  against. To Dynamo they are `torch.maximum` and `torch.clamp`: a tensor where eager has a number, and half of the gradient
  for each of two equal ones.
- ``range`` of numbers that are not whole, which Dynamo cuts off, and of which Python makes an error.
- `torch.cond` of what is no tensor. Dynamo takes numbers, texts and ``None`` among its operands, and a condition of several
  elements, of which torch makes an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._dynamo.exc import UncapturedHigherOrderOpError, UnspecializeRestartAnalysis, Unsupported
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    LazyVariableTracker,
    RangeVariable,
    TensorVariable,
    UnspecializedPythonVariable,
)
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew, VariableTracker
from torch._dynamo.variables.ctx_manager import GradIncrementNestingCtxManagerVariable
from torch._dynamo.variables.functions import UserFunctionVariable, WrapperUserFunctionVariable
from torch._dynamo.variables.higher_order_ops import CondHigherOrderVariable, find_mismatched_vars
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.random import fork_rng

from partitioner.frontend.capture.amended import amended, amends
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.python.asked import asked
from partitioner.model.functions import is_users
from partitioner.model.modes import device_types
from partitioner.model.undo import state_undo

# what registers hooks, and what says on a model that it has
_INSTALLS = "transformers.utils.output_capturing", "maybe_install_capturing_hooks"
_INSTALLED = "_output_capturing_hooks_installed"


@amends(WrapperUserFunctionVariable, "call_function")
def _call_wrapped(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """A call of a function with a cache ends the graph if the cache can be told; where one graph is needed, it is traced."""
    function = self.wrapper_obj
    if isinstance(function, torch.jit.ScriptFunction) and any(map(torch.is_autocast_enabled, device_types())):
        raise Unsupported(f"{function.name} is TorchScript's, which casts in its own way under autocast")
    if not hasattr(function, "cache_info") or (function.__module__ or "").startswith("torch."):
        return plain(self, tx, args, kwargs)
    users = is_users(function.__module__)
    if users and not self.self_args() and all(each.is_python_constant() for each in (*args, *kwargs.values())):
        return _of_user(partial(plain, self), tx, function, args, kwargs)
    if HERE.whole:
        return plain(self, tx, args, kwargs)
    if users:
        raise Unsupported(f"{function.__qualname__} has a cache")
    return _of_package(partial(plain, self), tx, function, args, kwargs)


def _of_package(plain: Callable[..., Any], tx: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """What it does is only known once it has been traced. Tracing then begins again, and comes no farther than the call."""
    found, drawn, allowed = list[Any](), len(tx.output.random_calls), SideEffects.check_allowed_side_effect

    def writes(effects: Any, item: Any) -> Any:
        if not isinstance(item.mutation_type, AttributeMutationNew | ValueMutationNew):
            found.append(item)
        return allowed(effects, item)

    with amended(SideEffects, check_allowed_side_effect=writes):
        result = plain(tx, args, kwargs)
    VariableTracker.visit(lambda value: found.append(value) if isinstance(value, TensorVariable) else None, result)
    if found or len(tx.output.random_calls) > drawn:
        raise Unsupported(f"{function.__qualname__} keeps in a cache what it does")
    return result


def _of_user(plain: Callable[..., Any], tx: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """What one that writes nothing gives for constants: it is called before each call, as forward would call it.

    That it writes nothing is known once it has been traced, apart from the graph. One that draws has to draw where forward
    calls it, and so its cache is emptied again if it was empty.
    """
    drawn = len(tx.output.random_calls)
    try:
        with tx.output.subtracer("cached", None):
            plain(tx, args, kwargs)
    except Unsupported as error:
        raise Unsupported(f"{function.__qualname__} has a cache, and writes something, or cannot be traced") from error
    if len(tx.output.random_calls) > drawn:
        raise Unsupported(f"{function.__qualname__} has a cache, and draws random numbers")
    named = {name: each.as_python_constant() for name, each in kwargs.items()}
    ask, undo = partial(function, *(each.as_python_constant() for each in args), **named), state_undo(function)
    with fork_rng(devices=[]):
        before = torch.get_rng_state()
        found = ask()
        if not torch.equal(before, torch.get_rng_state()):
            undo()
            raise Unsupported(f"{function.__qualname__} has a cache, and draws random numbers")
    return asked(tx, ask, found)


@amends(UserFunctionVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """Hooks that transformers registers once somebody asks for what layers give are registered, and tracing begins anew.

    There is a lock around them, and a graph cannot register any, which is an error where one whole graph is needed.
    """
    if not HERE.whole or (self.fn.__module__, self.fn.__name__) != _INSTALLS:
        return plain(self, tx, args, kwargs)
    model = args[0].realize().value
    if hasattr(model, _INSTALLED):
        return plain(self, tx, args, kwargs)
    self.fn(model)
    raise UnspecializeRestartAnalysis(restart_reason="hooks of a model that are registered at its first call")


@amends(UserFunctionVariable, "__init__")
def _begin_function(plain: Callable[..., None], self: Any, fn: Any, *args: Any, **options: Any) -> None:
    plain(self, fn, *args, **options)
    if self.is_constant and is_users(fn.__module__):
        self.is_constant = False


@amends(GradIncrementNestingCtxManagerVariable, "enter")
def _enter(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    if HERE.inference:
        raise Unsupported("torch.func differentiates under inference mode")
    return plain(self, *arguments)


@amends(TensorVariable, "method_attr_requires_grad")
def _requires_grad(plain: Callable[..., Any], self: Any, tx: Any) -> Any:
    if HERE.inference and self.requires_grad and self.source is None:
        raise Unsupported("a tensor is asked for its gradient under inference mode")
    return plain(self, tx)


@amends(BuiltinVariable, "_call_min_max_binary")
def _call_min_max(plain: Callable[..., Any], self: Any, tx: Any, *values: Any) -> Any:
    if any(isinstance(value, TensorVariable) and not isinstance(value, UnspecializedPythonVariable) for value in values):
        raise Unsupported(f"{self.fn.__name__} of a tensor")
    if len(values) == 2 and any(isinstance(value, SymNodeVariable) for value in values):
        first, second = values
        larger = BuiltinVariable(operator.gt).call_function(tx, [second, first] if self.fn is max else [first, second], {})
        if isinstance(larger, SymNodeVariable):
            larger = ConstantVariable.create(larger.evaluate_expr())
        return second if larger.as_python_constant() else first
    return plain(self, tx, *values)


@amends(RangeVariable, "__init__")
def _range(plain: Callable[..., None], self: Any, items: Any, **options: Any) -> None:
    if not all(hasattr(each.as_python_constant(), "__index__") for each in items if each.is_python_constant()):
        raise Unsupported("a range of numbers that are not whole")
    plain(self, items, **options)


@amends(CondHigherOrderVariable, "call_function")
def _call_cond(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if len(args) == 4:
        condition, *_, operands = args = LazyVariableTracker.realize_all(args)
        chosen = condition.is_python_constant()
        if not _decides(condition) or not (chosen or _all_tensors(operands)):
            raise UncapturedHigherOrderOpError("torch.cond is given what is no tensor, or a condition of several elements")
    return plain(self, tx, args, kwargs)


def _decides(condition: Any) -> bool:
    """Whether torch takes it for a condition."""
    if condition.is_python_constant():
        return isinstance(condition.as_python_constant(), bool | int | float)
    return not condition.is_tensor() or bool(condition.as_proxy().node.meta["example_value"].numel() == 1)


def _all_tensors(operands: Any) -> bool:
    """Whether what a branch is given consists of tensors. A number that is open is a tensor to Dynamo."""
    leaves = find_mismatched_vars(operands, ())
    return all(isinstance(leaf, TensorVariable) and not isinstance(leaf, UnspecializedPythonVariable) for leaf in leaves)
