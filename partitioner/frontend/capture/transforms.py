"""Gradients by `torch.func` under inference mode: in eager there are some, and of what Dynamo makes of them torch raises.

Here they end the graph, and run as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.exc import Unsupported
from torch._dynamo.variables.ctx_manager import GradIncrementNestingCtxManagerVariable

from partitioner.frontend.capture.amended import amends
from partitioner.frontend.capture.here import HERE


@amends(GradIncrementNestingCtxManagerVariable, "enter")
def _enter(plain: Callable[..., Any], self: Any, *arguments: Any) -> Any:
    if HERE.inference:
        raise Unsupported("torch.func differentiates under inference mode")
    return plain(self, *arguments)
