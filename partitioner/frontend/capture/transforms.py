"""Gradients by `torch.func` under inference mode: in eager there are some, and of what Dynamo makes of them torch raises.

Here they end the graph, and run as they are.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.variables.ctx_manager import GradIncrementNestingCtxManagerVariable

from partitioner.frontend.capture.amended import amended


def transforms_kept() -> AbstractContextManager[None]:
    """While a frame is traced: a gradient by `torch.func` under inference mode ends the graph."""
    plain, inference = GradIncrementNestingCtxManagerVariable.enter, torch.is_inference_mode_enabled()

    def enter(self: Any, *arguments: Any) -> Any:
        if inference:  # which Dynamo leaves while it traces
            raise Unsupported("torch.func differentiates under inference mode")
        return plain(self, *arguments)

    return amended(GradIncrementNestingCtxManagerVariable, enter=enter)
