"""`torch.nn.TransformerEncoder` under a mask of padding, which without gradients gives zeros for what is padded.

It gives its layers nested tensors then, which have no padded rows, unless a tracer is at work:

    torch.compiler.is_compiling()                                        then padded rows hold numbers
    aligned = torch._nested_tensor_from_mask_left_aligned(src, keep)     whether padding comes last, asked in Python
    output  = torch._nested_tensor_from_mask(output, keep)               no graph can hold what that gives
    output  = layer(output, src_key_padding_mask=None)                   for each layer
    output  = output.to_padded_tensor(0.0, size)

So it is told of no tracer. Where Python may stand between graphs its question ends one, and torch does what it does. Where
one graph must be all of the call, the answer is yes; layers get all rows and the mask, as they do without nested tensors, so
that no row sees a padded one; and behind them padded rows are zeros if padding comes last, which tensors decide: equal to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.variables import ConstantVariable, TensorVariable, TorchInGraphFunctionVariable
from torch._dynamo.variables.functions import SkipFunctionVariable
from torch._dynamo.variables.nn_module import UnspecializedNNModuleVariable

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE

_MASK, _IS_NESTED = "src_key_padding_mask", "convert_to_nested"
"""What torch's forward calls the mask, whose entries are numbers by then, and that its output is a nested tensor."""


@amends(TorchInGraphFunctionVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is torch.compiler.is_compiling and _is_encoder(tx) and _may_pad(tx):
        return ConstantVariable.create(False)
    if self.value is torch._nested_tensor_from_mask_left_aligned and _is_whole(tx):
        return ConstantVariable.create(True)
    return plain(self, tx, args, kwargs)


@amends(SkipFunctionVariable, "call_function")
def _call_skipped(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is torch._nested_tensor_from_mask and _is_whole(tx):
        return args[0]
    return plain(self, tx, args, kwargs)


@amends(UnspecializedNNModuleVariable, "call_function")
def _call_layer(plain: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if not (_is_whole(tx) and _is_nested(tx) and _MASK in kwargs):  # what is called behind the layers has no mask
        return plain(self, tx, args, kwargs)
    if not _is_torchs(self.value):
        raise Unsupported("a nested tensor is given to an encoder's layer that has hooks or a forward of its own")
    return plain(self, tx, args, {**kwargs, _MASK: tx.symbolic_locals[_MASK]})


@amends(TensorVariable, "call_method")
def _call_method(plain: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "to_padded_tensor" and _is_whole(tx) and _is_nested(tx):
        return _zeroed(tx, self, tx.symbolic_locals[_MASK])
    return plain(self, tx, name, args, kwargs)


def _is_encoder(tx: Any) -> bool:
    """Whether it is an encoder's forward that calls."""
    return tx.f_code is nn.TransformerEncoder.forward.__code__


def _is_whole(tx: Any) -> bool:
    return HERE.whole and _is_encoder(tx)


def _may_pad(tx: Any) -> bool:
    """Whether no gradient of its weights is wanted, which would rule the path out."""
    encoder: nn.Module = tx.symbolic_locals["self"].value
    return not torch.is_grad_enabled() or not all(parameter.requires_grad for parameter in encoder.parameters())


def _is_nested(tx: Any) -> bool:
    nested = tx.symbolic_locals.get(_IS_NESTED)
    return nested is not None and nested.realize().is_python_constant() and bool(nested.as_python_constant())


def _is_torchs(layer: nn.Module) -> bool:
    """Whether nobody looks at what is given to a layer, rows that are padded or a nested tensor."""
    hooks = (each._forward_hooks or each._forward_pre_hooks for each in layer.modules())
    return getattr(layer.forward, "__func__", None) is nn.TransformerEncoderLayer.forward and not any(hooks)


def _zeroed(tx: Any, output: Any, mask: Any) -> Any:
    """``output.masked_fill((mask.bool() & comes_last).unsqueeze(-1), 0.0)``."""
    rows = _called(tx, mask, "bool")
    if getattr(tx.symbolic_locals["self"].value, "mask_check", True):  # or torch takes it for granted
        rows = _called(tx, rows, "logical_and", _comes_last(tx, rows))
    return _called(
        tx, output, "masked_fill", _called(tx, rows, "unsqueeze", ConstantVariable.create(-1)), ConstantVariable.create(0.0)
    )


def _comes_last(tx: Any, padded: Any) -> Any:
    """Whether what is kept of each row comes before what is padded: ``padded.int().diff().ge(0).all()``."""
    steps = _called(tx, _called(tx, padded, "int"), "diff")
    return _called(tx, _called(tx, steps, "ge", ConstantVariable.create(0)), "all")


def _called(tx: Any, value: Any, name: str, *args: Any) -> Any:
    """What a method of a tensor gives."""
    return value.call_method(tx, name, [*args], {})
