"""What forward itself does to gradients: ops of the graph, where Dynamo would end it for what AOTAutograd cannot do.

    h = x.detach()[:, None]
    h.requires_grad = True                          a write to h; features of sound are made trainable so
    force, = torch.autograd.grad(energy, h)         an op like any other, of tensors that one graph has made

Nothing is differentiated ahead here: ops run as they are written, and autograd records them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._dynamo import config
from torch._dynamo.exc import Unsupported
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
    builtin,
)
from torch._dynamo.variables.base import VariableTracker

from partitioner.frontend.capture.amended import amends, method_of_tensors
from partitioner.frontend.capture.here import HERE
from partitioner.frontend.capture.names import name_of

_SETATTR: Any = getattr(builtin, "SetAttrBuiltinVariable", None)
"""What sets attributes; in torch 2.11 the class of all functions of Python's own."""


@amends(*method_of_tensors("requires_grad_"))
def _requires_grad_(plain: Callable[..., Any], self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    node = self.as_proxy().node
    value = all(wanted.as_python_constant() for wanted in (*args, *kwargs.values()))
    made = node.meta["example_value"]
    if self.source or made.requires_grad is value or node.graph is not tx.output.root_tracer.graph:
        return plain(self, tx, *args, **kwargs)
    if HERE.whole and node.users:
        raise Unsupported("a tensor is to have a gradient that was read before, perhaps as a copy on another device")
    tx.output.create_proxy("call_method", "requires_grad_", (self.as_proxy(), value), {})
    made.requires_grad_(value)
    self.synchronize_attributes(tx)
    return self


@amends(_SETATTR or BuiltinVariable, "_call_setattr" if _SETATTR else "call_setattr")
def _set_attribute(plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any) -> Any:
    tensor, name, value = arguments
    known = isinstance(tensor, TensorVariable) and not tensor.source and value.is_python_constant()
    if not known or name.as_python_constant() != "requires_grad" or not tensor.as_proxy().node.meta["example_value"].is_leaf:
        return plain(self, tx, *arguments)
    tensor.call_method(tx, "requires_grad_", [value], {})
    return ConstantVariable.create(None)


@amends(TorchInGraphFunctionVariable, "call_function")
def _call(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """On several devices an argument may be copied, and in a job a tensor may be another rank's."""
    asks = self.value is torch.autograd.grad and not HERE.once
    if asks and HERE.whole and _given(args, kwargs):
        raise Unsupported("torch.autograd.grad is asked for gradients of what it is given, and a device may have a copy")
    with config.patch(trace_autograd_ops=True) if asks else nullcontext():
        return plain(self, tx, args, kwargs)


@amends(OutputGraph, "_validate_outputs_safe_for_autograd_nodes")
def _no_validation(*_arguments: Any) -> None:
    """What was differentiated may be a result: that it cannot be once more, autograd says, and to who tries."""


def _given(args: Any, kwargs: Any) -> bool:
    """Whether gradients are asked for what comes with the call, and is no parameter of the model's: those are never copied."""
    found: list[Any] = []
    VariableTracker.visit(lambda each: found.append(each) if isinstance(each, TensorVariable) else None, [args[1:2], kwargs])
    return any(each.source and not _is_parameter(each) for each in found)


def _is_parameter(asked: Any) -> bool:
    return asked.class_type is nn.Parameter and not name_of(asked.source).startswith(("L['args']", "L['kwargs']"))
