"""Whose fault it is that a call cannot be one graph: the model's, which raises on it, or the tracer's.

Torch traces on fake tensors, and those have faults of their own: an op without a rule for them, or a rule that is stricter than
the op. So what a trace ends with is the model's own error only if the model raises it when it is called as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch._dynamo import config
from torch._dynamo.exc import TorchRuntimeError, Unsupported
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from partitioner.errors import TraceError
from partitioner.frontend.capture.fakes import on_fakes
from partitioner.frontend.capture.here import explain
from partitioner.frontend.capture.tensors.checks import can_only_raise
from partitioner.model.keep import state_kept
from partitioner.model.state import lies_on_meta

_RAISES = (
    "Observed exception",
    "Data-dependent assertion failed",
    "failed to bind arguments",
    "TypeError when making",
    "Can't convert torch._check",  # whose text needs what forward computes
)
"""So the tracer begins where a model raises an error."""

BEYOND_FAKES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What fakes raise of themselves."""

WITHOUT_VALUES = "found by calling the model on tensors without values; with values it may do otherwise"

ADVICE = (
    "Move that out of forward, give fullgraph=False, with which Python may stand between graphs, or partition onto lanes of "
    "one device"
)

OVER_RANKS = (
    "Move that out of forward, into the data or the loss, let tensors decide it (torch.where), or, where only a first call "
    "does it, call the model once before"
)


def refuse_no_tracer() -> None:
    """Refuse to begin where torch's tracer is turned off: every call would run as it is, and nothing would say so.

    Raises:
        TraceError: says what turns it off.
    """
    for name, off in (
        ("TORCHDYNAMO_DISABLE=1 in the environment", os.environ.get("TORCHDYNAMO_DISABLE") == "1"),
        ("torch._dynamo.config.disable (TORCH_COMPILE_DISABLE=1 in the environment)", config.disable),
    ):
        if off:
            raise TraceError(f"{name} turns torch's tracer off, with which models are seen; unset it")


def refusal(root: nn.Module, call: partial[Any], error: Exception, once: bool = False) -> Exception:
    """What is raised in the place of a result where a call could not be traced as one graph.

    Args:
        root: the model; it and the arguments of the call are left as they were, or as it leaves them if it raises.
        call: the method with its arguments, without the tracer.
        error: what the tracer raised.
        once: whether the graph is wanted for ranks of a job.

    Returns:
        What the model itself raises, or a `TraceError` that says why the tracer gave up.
    """
    name = type(root).__name__
    method = f"{name}.{call.func.__name__}"
    asking, advice = ("a job of several ranks", OVER_RANKS) if once else ("state on several devices or fullgraph=True", ADVICE)
    text = f"{method} cannot be one graph, as {asking} asks for: {explain(error)}"
    if not may_be_the_models(error):
        return TraceError(f"{text}. {advice}")
    if not lies_on_meta(root):
        text += f". {name} itself raises nothing on this call"
        return _raised_here(root, call, once) or TraceError(f"{text}. {advice}")
    raised = _raised(call, state_kept(root, tensors=False), on_fakes())
    if raised is None or isinstance(raised, BEYOND_FAKES):
        return TraceError(f"{text}. {advice}")
    raised.add_note(WITHOUT_VALUES)
    return raised


def _raised_here(root: nn.Module, call: partial[Any], once: bool) -> Exception | None:
    """What a model raises on a call, and then all that it has done by then: what it has drawn, counted, written and caught."""
    raised = own_error(root, call)
    if raised is None or once:
        return raised
    together: Any = Together()  # type: ignore[no-untyped-call]
    return _raised(call, together) or raised


def own_error(root: nn.Module, call: partial[Any]) -> Exception | None:
    """What a model itself raises on a call, wherever its state lies. It and the arguments are left as they were."""
    together: Any = Together()  # type: ignore[no-untyped-call]
    return _raised(call, state_kept(root, call.args, call.keywords), together)


def may_be_the_models(error: Exception) -> bool:
    """Whether tracing failed because the model raises, and not because Python stands between two graphs."""
    if not isinstance(error, Unsupported) or isinstance(error, TorchRuntimeError):
        return True
    return str(error).startswith(_RAISES) or can_only_raise(error)


class Together(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets a model run whose state lies on several devices: an op runs where its first tensor lies, on copies of the others.

    Example:
        >>> import torch
        >>> with Together():
        ...     print((torch.ones(2, device="meta") + torch.ones(2)).device)
        meta
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = [leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if len({*places}) > 1:
            args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to(places[0]), (args, kwargs))
        return func(*args, **kwargs)


def _raised(call: Callable[[], Any], *within: AbstractContextManager[Any]) -> Exception | None:
    """What a call raises."""
    try:
        with ExitStack() as stack:
            for context in within:
                stack.enter_context(context)
            call()
    except Exception as raised:  # the model may raise anything
        return raised
    return None
