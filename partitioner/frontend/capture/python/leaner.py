"""Guards of Dynamo's that nothing here depends on. Each is memory that every call touches; ten of them take as long as an op.

- That no hook of a module wants keyword arguments is asked beside that it has no hooks. Without hooks none can want them.
- That no tensor has been marked since, as one whose sizes may change or may not: those say how the next program is to be
  made, and the one that there is stays right.

- That a tensor is the very one that was marked as lying where it lies for good. Dynamo holds such a tensor with the graph; here
  it is an argument like any other, as which it may be written, moved, and another one in the next call.

Nor does it depend on what torch logs of them: how long new ones take, for which it empties the processor's caches, 25 ms a
program; and which line of the user's asked for each, for which it formats a frame. Who switches the log on has the lines.

What Dynamo puts around a program asks more than has to be known there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._dynamo.eval_frame import set_eval_frame
from torch._C._dynamo.guards import GuardManager
from torch._dynamo import decorators, guards
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.variables import builder
from torch._logging._internal import log_state

from partitioner.frontend.capture.amended import amends


@amends(GuardBuilder, "EMPTY_NN_MODULE_HOOKS_DICT")
def _no_hooks(plain: Callable[..., None], builder: GuardBuilder, guard: Any) -> None:
    if not guard.name.endswith("_with_kwargs"):
        plain(builder, guard)


@amends(guards, "get_verbose_code_parts")
def _without_lines(plain: Callable[..., list[str]], parts: str | list[str], *rest: Any, **named: Any) -> list[str]:
    if any(map(log_state.is_artifact_enabled, ("guards", "recompiles", "recompiles_verbose"))):
        return plain(parts, *rest, **named)
    return parts if isinstance(parts, list) else [parts]


@amends(guards, "profile_guard_manager")
def _takes_no_time(*_: Any) -> float:
    return 0.0


if hasattr(GuardManager, "add_dimension_marking_guard"):  # not in torch 2.11

    @amends(GuardManager, "add_dimension_marking_guard")
    def _no_mark(*_: Any) -> None:
        pass


@amends(builder, "get_static_address_type")
def _is_an_argument(*_: Any) -> None:
    return None


def untraced(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a graph's inputs that is run without the tracer, as what `torch._dynamo.disable` gives, in half its time.

    That one also asks which stance is taken, and whether somebody exports: here both have been asked before the call.
    """

    def call(*inputs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return run(*inputs)
        finally:
            set_eval_frame(before)

    return call


_UNTRACED = untraced(print).__code__
skip_code(_UNTRACED)


@amends(decorators, "disable")
def _disabled(plain: Callable[..., Any], function: Any = None, *rest: Any, **named: Any) -> Any:
    return function if getattr(function, "__code__", None) is _UNTRACED else plain(function, *rest, **named)
