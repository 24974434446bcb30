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
from torch._dynamo import config
from torch._dynamo.variables import (
    BuiltinVariable,
    ConstantVariable,
    TensorVariable,
    TorchInGraphFunctionVariable,
    builtin,
)

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE

_SETATTR: Any = getattr(builtin, "SetAttrBuiltinVariable", None)
"""What sets attributes; in torch 2.11 the class of all functions of Python's own."""


@amends(TensorVariable, "method_requires_grad_")
def _requires_grad_(plain: Callable[..., Any], self: Any, tx: Any, *wanted: Any) -> Any:
    node = self.as_proxy().node
    value = all(each if isinstance(each, bool) else each.as_python_constant() for each in wanted)
    made = node.meta["example_value"]
    if self.source or made.requires_grad is value or node.graph is not tx.output.root_tracer.graph:
        return plain(self, tx, *wanted)
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
    tensor.method_requires_grad_(tx, value)
    return ConstantVariable.create(None)


@amends(TorchInGraphFunctionVariable, "call_function")
def _call(plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any) -> Any:
    """In a job the tensors may be other ranks'."""
    asks = self.value is torch.autograd.grad and not HERE.once
    with config.patch(trace_autograd_ops=True) if asks else nullcontext():
        return plain(self, tx, *arguments)
