"""Functions with a cache, `functools.lru_cache`, that give tensors.

Dynamo traces what lies in such a function as if there were no cache: its second call would give other tensors than its first,
other random numbers among them. Here such a call ends the graph, and runs as it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import WrapperUserFunctionVariable

from partitioner.frontend.capture.amended import amended


def caches_kept() -> AbstractContextManager[None]:
    """While a frame is traced: a call of a function with a cache ends the graph if it gives tensors.

    What it does is only known once it has been traced. Tracing then begins again, and comes no farther than the call.
    """
    plain = WrapperUserFunctionVariable.call_function

    def call_function(self: Any, *arguments: Any) -> Any:
        result = plain(self, *arguments)
        function = self.wrapper_obj
        if hasattr(function, "cache_info") and not (function.__module__ or "").startswith("torch."):
            found: list[Any] = []
            VariableTracker.visit(lambda value: found.append(value) if isinstance(value, TensorVariable) else None, result)
            if found:
                raise Unsupported(f"{function.__qualname__} keeps its tensors in a cache")
        return result

    return amended(WrapperUserFunctionVariable, call_function=call_function)
