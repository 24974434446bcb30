"""Autograd functions that are marked with `torch.autograd.function.once_differentiable`: the mark is kept.

Dynamo traces a backward without gradients, where the mark says nothing, and so forgets it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable
from torch._functorch.autograd_function import autograd_function_apply
from torch.autograd.function import once_differentiable

from partitioner.frontend.capture.amended import amended

MARK = once_differentiable(lambda ctx: None).__code__
"""The code of every backward that is so marked."""


def marks_kept() -> AbstractContextManager[None]:
    """While a frame is traced: a call of such a function has the option ``once``."""
    plain = AutogradFunctionApplyVariable.call_function

    def call_function(self: Any, tx: Any, *arguments: Any) -> Any:
        result = plain(self, tx, *arguments)
        if getattr(self.bwd_fn, "__code__", None) is MARK:
            *_, call = tx.output.current_tracer.graph.find_nodes(op="call_function", target=autograd_function_apply)
            call.kwargs = {**call.kwargs, "once": True}
        return result

    return amended(AutogradFunctionApplyVariable, call_function=call_function)
