"""What a write to one tensor changes of others that share its memory, or are it: what Dynamo knows of these is asked for again.

    v = torch.zeros_like(x); v[:, 1:].add_(weight)          v.requires_grad is true now
    w = z.unsqueeze_(0)                                     z.shape is w's
    for row in y: row.mul_(2)                               an error: rows are views of one `unbind`, and not ``y[0]``, ``y[1]``

Dynamo keeps what a tensor is like with each variable, and looks again at the one whose method was called, not at its base, at
other views, at what went into ``out=`` or ``torch._foreach_add_``. So it told forward what had been true before. And a
dropout that drops nothing gives its very argument, and on fakes a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import TensorVariable, builder
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version
from torch.nn import functional

from partitioner.frontend.capture.amended import GETATTR, amends
from partitioner.frontend.capture.tensors.targets import STANDS_FOR

_PLAIN = (TensorVariable,)
"""Its heirs stand for numbers and arrays, which nothing writes under another name."""


@amends(TensorVariable, GETATTR)
def _attribute(plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any, **options: Any) -> Any:
    """What is an op of the graph, such as ``x._version``, comes from there: Dynamo would ask ``x`` once more at the end."""
    _look_again(self, tx)
    found = plain(self, tx, *arguments, **options)
    if isinstance(found, TensorVariable | SymNodeVariable) and found.proxy.node.op.startswith("call"):
        found.source = None
    return found


@amends(TensorVariable, "call_method")
def _call_method(plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any, **options: Any) -> Any:
    _look_again(self, tx)
    return plain(self, tx, *arguments, **options)


@amends(TensorVariable, "unpack_var_sequence")
def _unpack(plain: Callable[..., Any], self: Any, tx: Any, idxes: Any = None) -> Any:
    """Rows are views that one op makes, as in eager, which lets nobody write to one of several if there are gradients."""
    _look_again(self, tx)
    shape = self.proxy.node.meta["example_value"].shape
    if type(self) is not TensorVariable or not shape or (idxes is not None and len(idxes) != shape[0]):
        return plain(self, tx, idxes)
    return self.call_method(tx, "unbind", [], {}).unpack_var_sequence(tx)


@amends(builder, "get_fake_value")
def _fake(plain: Callable[..., Any], node: Any, *arguments: Any, **options: Any) -> Any:
    found = plain(node, *arguments, **options)
    if node.target not in (functional.dropout, torch.dropout):
        return found
    named = {"p": 0.5, "training": True} | dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    drops = named.get("train", named["training"]) is not False and named["p"] != 0
    return found if drops else named["input"].meta["example_value"]


def _look_again(tensor: Any, tx: Any) -> None:
    """Have a variable know what its tensor is like, if that has been written since it was last seen."""
    fake = tensor.proxy.node.meta.get("example_value")
    if type(tensor) not in _PLAIN or fake is None or fake.is_inference():
        return
    if fake._version != getattr(tensor, "seen", 0) or fake.requires_grad != tensor.requires_grad:
        tensor.synchronize_attributes(tx)
        tensor.seen = fake._version


def data(tensor: Tensor) -> Tensor:
    """What ``tensor.data`` is in a graph. Dynamo's name for it belongs to the functions that change what a thread is in."""
    return tensor.data


def set_(tensor: Tensor, other: Any) -> Tensor:
    """What ``tensor.data = other`` is in a graph, where Dynamo has a method's name for it and counts it as no write afterwards.

    The method would have autograd make another node for the gradient of a weight, beside the one that ops before it lead to.
    """
    if isinstance(tensor, FakeTensor) or not tensor.requires_grad:
        return tensor.set_(other)
    tensor.data = other
    increment_version(tensor)
    return tensor


STANDS_FOR.update({Tensor.set_: set_, getattr(torch._C._autograd, "_get_data_attr", None): data})
