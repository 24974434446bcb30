"""`torch.nn.TransformerEncoder` under a mask of padding, which without gradients gives zeros for what is padded.

To do so it asks whether the mask is in order, which no tracer can answer, and so it does not ask while one is at work: the
padded rows would hold numbers that eager does not give. Here it is told of no tracer, and its question ends the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.variables import ConstantVariable, TorchInGraphFunctionVariable

from partitioner.frontend.capture.amended import amends


@amends(TorchInGraphFunctionVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any) -> Any:
    if self.value is torch.compiler.is_compiling and _may_pad(tx):
        return ConstantVariable.create(False)
    return plain(self, tx, *arguments)


def _may_pad(tx: Any) -> bool:
    """Whether it is an encoder's forward that asks, and no gradient of its weights is wanted, which would rule the path out."""
    if tx.f_code is not nn.TransformerEncoder.forward.__code__:
        return False
    encoder: nn.Module = tx.symbolic_locals["self"].value
    return not torch.is_grad_enabled() or not all(parameter.requires_grad for parameter in encoder.parameters())
