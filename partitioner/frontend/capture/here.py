"""What a thread is tracing, and what is said of it: torch's loggers keep silent, a failure is one line."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from partitioner.model.source import is_user_code

Watched = tuple[Callable[[dict[str, Any]], bool], ...]
"""Conditions on ``L``, a frame's local variables, and ``G``, its globals."""


class Here(threading.local):
    """What this thread is tracing: whose frame, whether torch's loggers keep silent, and what else is to be guarded."""

    paths: Mapping[str, str]
    function: str
    tracing: bool
    scope: Mapping[str, Any]
    watched: Watched

    def __init__(self) -> None:
        self.paths, self.function, self.tracing, self.scope, self.watched = {}, "", False, {}, ()


HERE = Here()


class _Silence(logging.Filter):
    """What torch logs about a try of ours is nobody's concern; what it logs on other threads is."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not HERE.tracing


_TALKING = ("torch._dynamo", "torch._subclasses", "torch.fx.experimental", "torch._guards", "torch._logging")
for _name in [name for name in logging.root.manager.loggerDict if name.startswith(_TALKING)]:
    logging.getLogger(_name).addFilter(_Silence())


def explain(error: BaseException) -> str:
    """Why something could not be traced, in one line with the line of the user's code."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    raised = re.search(r"with fake tensors: .*: got (.*)", str(error))
    text = f"on tensors without values: {raised[1]}" if raised else text
    frames = [frame for frame in getattr(error, "real_stack", ()) if is_user_code(frame.filename)]
    return f"{text} (at {frames[-1].filename}:{frames[-1].lineno})" if frames else text


def reason_of(module: torch.fx.GraphModule) -> str:
    """Why a graph ends where it does, if forward goes on after it."""
    found = getattr(module, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return ""
    text = found.reason.splitlines()[0]
    text = "Python decides on the value of a tensor" if text.startswith("generic_jump") else text
    frames = [frame for frame in found.user_stack if is_user_code(frame.filename)]
    return f"{text} (at {frames[-1].filename}:{frames[-1].lineno})" if frames else text
