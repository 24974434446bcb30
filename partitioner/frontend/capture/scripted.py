"""Functions of `torch.jit.script`, under autocast.

TorchScript goes by rules of its own there: ``x * 2`` of a bfloat16 gives float32, and in Python bfloat16. Dynamo traces the
Python that the function was made of, and so would miss it. Here such a call ends the graph, and runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.variables.functions import WrapperUserFunctionVariable

from partitioner.frontend.capture.amended import amends
from partitioner.model.modes import device_types


@amends(WrapperUserFunctionVariable, "call_function")
def _call_function(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    if isinstance(self.wrapper_obj, torch.jit.ScriptFunction) and any(map(torch.is_autocast_enabled, device_types())):
        raise Unsupported(f"{self.wrapper_obj.name} is TorchScript's, which casts in its own way under autocast")
    return plain(self, *arguments)
