"""Autograd functions that are marked with `torch.autograd.function.once_differentiable`: the mark is kept.

Dynamo traces a backward without gradients, where the mark says nothing, and so forgets it. And it makes an instance of such a
function, of which torch itself warns: where warnings are errors, nothing could be traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo.variables.higher_order_ops import AutogradFunctionApplyVariable
from torch._functorch.autograd_function import autograd_function_apply
from torch.autograd.function import Function, once_differentiable

from partitioner.frontend.capture.amended import amended
from partitioner.frontend.capture.here import HERE

MARK = once_differentiable(lambda ctx: None).__code__
"""The code of every backward that is so marked."""


@contextmanager
def marks_kept() -> Iterator[None]:
    """While a frame is traced: a call of such a function has the option ``once``."""
    plain, begin = AutogradFunctionApplyVariable.call_function, Function.__init__

    def call_function(self: Any, tx: Any, *arguments: Any) -> Any:
        result = plain(self, tx, *arguments)
        if getattr(self.bwd_fn, "__code__", None) is MARK:
            *_, call = tx.output.current_tracer.graph.find_nodes(op="call_function", target=autograd_function_apply)
            call.kwargs = {**call.kwargs, "once": True}
        return result

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not HERE.tracing:  # another thread
            begin(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    with amended(AutogradFunctionApplyVariable, call_function=call_function), amended(Function, __init__=init):
        yield
