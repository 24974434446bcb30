"""Autograd functions of the user's: what torch records of them is what is recorded here.

torch looks at the tensors that a function is given as arguments of their own, and at those that it gives back so. Dynamo
looks into lists and layers, too, and where no argument wants a gradient it traces forward as any other function: what a list, a
layer or a closure holds would have gradients that it has not in eager. There forward is traced without gradients, as it runs,
and an argument that is given back as it came is another tensor, as torch makes one. Lists that are given back end the graph.

To Dynamo every result has a gradient, and it drops gradients that backward gives too many, and adds what is missing: a function
that asks for no zeros in their place (``set_materialize_grads(False)``) and has several results, and a backward of which torch
would make an error, end the graph.

Within a transform of `torch.func` tensors seem to want no gradient, or have another history, and a backward is traced without
gradients: a function that is called there would lose its own backward, and the graph ends, too.

A backward that is marked with `torch.autograd.function.once_differentiable` is traced without gradients, where the mark says
nothing: it is kept. And Dynamo makes an instance of such a function, of which torch itself warns: where warnings are errors,
nothing could be traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import ConstantVariable, TupleVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.ctx_manager import GradModeVariable
from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable
from torch._dynamo.variables.misc import AutogradFunctionContextVariable, AutogradFunctionVariable
from torch._functorch.autograd_function import autograd_function_apply
from torch.autograd.function import Function, _is_setup_context_defined, once_differentiable

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE

BACKWARD = "a backward"
"""Stands among the names of functions that are being traced for the backward of one."""

MARK = once_differentiable(lambda ctx: None).__code__
"""The code of every backward that is so marked."""


@amends(AutogradFunctionVariable, "call_apply")
def _call_apply(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Unsupported(f"{self.fn_cls.__name__}, an autograd function, is called within a transform of torch.func")
    if HERE.functions and HERE.functions[-1] == BACKWARD:
        raise Unsupported(f"{self.fn_cls.__name__}, an autograd function, is called in the backward of another")
    given = [each for each in (each.realize() for each in (*args, *kwargs.values())) if each.is_tensor()]
    if torch.is_grad_enabled() and any(each.requires_grad is not False for each in given):
        HERE.functions.append(self.fn_cls.__name__)
        try:
            return plain(self, tx, args, kwargs)
        finally:
            HERE.functions.pop()
    mode = GradModeVariable(target_values=[False], initial_values=[torch.is_grad_enabled()])
    mode.enter(tx)
    context: Any = AutogradFunctionContextVariable.create(tx, args, kwargs)
    result = _forward(self, tx, context, args, kwargs)
    if issubclass(result.python_type(), tuple) and result.python_type() is not tuple:
        raise Unsupported(f"{self.fn_cls.__name__}, an autograd function, gives a tuple with names, and torch a plain one")
    written = {each.as_proxy() for each in getattr(context, "dirty_tensors", None) or ()}  # torch 2.11 has none
    result = _apart(tx, result, {each.as_proxy() for each in given} - written)
    mode.exit(tx)
    return result


def _forward(self: Any, tx: Any, context: Any, args: Any, kwargs: Any) -> Any:
    """What forward gives. Dynamo gives it no context where it takes as many arguments: with ``*args`` these were others."""
    source = self.source and AttrSource(self.source, "forward")
    forward = VariableTracker.build(tx, self.fn_cls.forward, source=source).realize()
    split = _is_setup_context_defined(self.fn_cls.setup_context)  # type: ignore[no-untyped-call]
    return forward.call_function(tx, [*([] if split else [context]), *args], kwargs)


@amends(AutogradFunctionContextVariable, "call_method")
def _note(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name != "mark_dirty" or getattr(self, "proxy", None) is not None:
        return plain(self, tx, name, args, kwargs)
    self.dirty_tensors = args  # no gradient is recorded, and what is given back as it came is the same tensor
    return ConstantVariable.create(None)


@amends(AutogradFunctionApplyVariable, "prepare_fn_vt")
def _prepare(plain: Callable[..., Any], self: Any, tx: Any, ctx: Any, name: str, args: Sequence[Any]) -> Any:
    function, given = plain(self, tx, ctx, name, args)
    call = function.call_function
    function.call_function = partial(_tracked if name == "forward" else _in_backward, call)
    return function, given


@amends(AutogradFunctionApplyVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    result = plain(self, tx, args, kwargs)
    *_, call = tx.output.current_tracer.graph.find_nodes(op="call_function", target=autograd_function_apply)
    once, names = getattr(self.bwd_fn, "__code__", None) is MARK, HERE.functions
    call.kwargs = {**call.kwargs, **({"once": True} if once else {}), **({"name": names[-1]} if names else {})}
    return result


@amends(AutogradFunctionApplyVariable, "trace_forward_graph")
def _trace_forward(plain: Callable[..., Any], self: Any, tx: Any, ctx: Any, *args: Any) -> Any:
    traced = plain(self, tx, ctx, *args)
    zeros = tx.output.side_effects.store_attr_mutations.get(ctx, {}).get("materialize_grads")
    if zeros is not None and len(_parts(traced[1])) > 1 and not zeros.as_python_constant():
        raise Unsupported("an autograd function with several results asks for no zeros in the place of their gradients")
    return traced


@amends(AutogradFunctionApplyVariable, "rewire_bwd_graph_outputs")
def _rewire(plain: Callable[..., Any], self: Any, inner: Any, given: Any, graph: Any, outer: Any, args: Sequence[Any]) -> Any:
    _refuse_wrong([each.realize() for each in _parts(given.realize())], len(args))
    return plain(self, inner, given, graph, outer, args)


@amends(Function, "__init__")
def _begin(plain: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    if not HERE.tracing:  # another thread
        plain(self, *args, **kwargs)


def _tracked(call: Callable[..., Any], *arguments: Any) -> Any:
    """What forward gives, if torch tracks all of it."""
    result = call(*arguments)
    if any(issubclass(part.python_type(), list | dict) for part in _parts(result)):
        raise Unsupported("an autograd function gives a list or dictionary, in which torch tracks no tensor")
    return result


def _in_backward(call: Callable[..., Any], *arguments: Any) -> Any:
    """What backward gives, which is traced without gradients: a function in there would lose its own backward."""
    HERE.functions.append(BACKWARD)
    try:
        return call(*arguments)
    finally:
        HERE.functions.pop()


def _refuse_wrong(gradients: Sequence[Any], wanted: int) -> None:
    """Of what backward gives torch takes tensors and ``None``, one for each argument; more of them if they are ``None``."""
    more = gradients[wanted:]
    known = all(each.is_tensor() or each.is_constant_none() for each in gradients)
    if len(gradients) < wanted or not known or not all(each.is_constant_none() for each in more):
        raise Unsupported(f"the backward of an autograd function gives other than {wanted} gradients")


def _apart(tx: Any, result: Any, given: set[Any]) -> Any:
    """What forward gives, where an argument that it gives back as it came is another tensor on the same memory."""
    if isinstance(result, TupleVariable):
        return TupleVariable([_apart(tx, each, given) for each in result.items])
    same = result.is_tensor() and result.as_proxy() in given
    return result.call_method(tx, "view_as", [result], {}) if same else result


def _parts(result: Any) -> Sequence[Any]:
    """What a function gives: its results, if there are several."""
    return result.items if isinstance(result, TupleVariable) else [result]
