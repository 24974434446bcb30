"""Functions with a cache, `functools.lru_cache`, that give tensors, draw random numbers, or write something.

Dynamo traces what lies in such a function as if there were no cache: its second call would give other tensors than its first,
other random numbers, and write once more. Here such a call ends the graph, and runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew, VariableTracker
from torch._dynamo.variables.functions import WrapperUserFunctionVariable

from partitioner.frontend.capture.amended import amended, amends
from partitioner.frontend.capture.here import HERE


@amends(WrapperUserFunctionVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, tx: Any, *arguments: Any) -> Any:
    """A call of a function with a cache ends the graph if the cache can be told.

    What it does is only known once it has been traced. Tracing then begins again, and comes no farther than the call.
    """
    function, found, allowed = self.wrapper_obj, list[Any](), SideEffects.check_allowed_side_effect
    if HERE.whole or not hasattr(function, "cache_info") or (function.__module__ or "").startswith("torch."):
        return plain(self, tx, *arguments)

    def writes(effects: Any, item: Any) -> Any:
        if not isinstance(item.mutation_type, AttributeMutationNew | ValueMutationNew):
            found.append(item)
        return allowed(effects, item)

    drawn = len(tx.output.random_calls)
    with amended(SideEffects, check_allowed_side_effect=writes):
        result = plain(self, tx, *arguments)
    VariableTracker.visit(lambda value: found.append(value) if isinstance(value, TensorVariable) else None, result)
    if found or len(tx.output.random_calls) > drawn:
        raise Unsupported(f"{function.__qualname__} keeps in a cache what it does")
    return result
