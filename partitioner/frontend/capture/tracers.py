"""Who is asked to trace a model, in which order; and, when all refuse, why each did.

In order: `torch.fx.symbolic_trace`, which keeps modules and hooks and is open in every shape; `torch.export`, where there are
example inputs; `symbolic_trace` again with the submodules to blame called as a whole. When all refuse, one error says why
each did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import nn

from partitioner.frontend.capture.capture import Capture, Refused
from partitioner.frontend.capture.export import capture_export
from partitioner.frontend.capture.symbolic import capture_symbolic
from partitioner.ir.signature import Open
from partitioner.model.call import Call, guess_call

Attempt = tuple[str, Callable[[], Capture]]

MAX_LEAVES = 32
"""Submodules that the last front end gives up before it gives up itself."""


def attempts(module: nn.Module, call: Call | None, open_dims: Open) -> Iterator[Attempt]:
    """The tracers to try, each by name."""
    example = guess_call(module) if call is None else call
    yield "symbolic_trace", lambda: capture_symbolic(module, example)
    if call is not None:
        yield "export", lambda: capture_export(module, call, open_dims=open_dims)
    yield "symbolic_trace with leaves", lambda: _with_leaves(module, example)


def _with_leaves(module: nn.Module, call: Call) -> Capture:
    """Call as a whole whichever submodule tracing fails in, until the rest traces."""
    leaves: frozenset[str] = frozenset()
    while True:
        try:
            return capture_symbolic(module, call, leaves=leaves)
        except Refused as refused:
            if not refused.path or refused.path in leaves or len(leaves) >= MAX_LEAVES:
                raise
            leaves |= {refused.path}


def why(module: nn.Module, call: Call | None, refusals: list[tuple[str, Refused]], skip: Sequence[str]) -> str:
    """What the error says when every tracer refused."""
    lines = [f"{type(module).__name__} cannot be traced."]
    for name, refused in refusals:
        where = " ".join(
            part for part in (refused.path and f"in {refused.path}", refused.source and f"at {refused.source}") if part
        )
        lines.append(f"  {name}: {refused.reason}{f' ({where})' if where else ''}")
    lines += (f"  {name}: its program did not compute what the model computes" for name in skip)
    if call is None:
        lines.append("  export: not tried, because it needs example_inputs")
        lines.append("Next: pass example_inputs=(...), or move the branching code into a submodule of its own.")
    else:
        lines.append("Next: move the code named above into a submodule of its own, which is then called as a whole,")
        lines.append("or replace branches on tensor values by torch.where or torch.cond.")
    return "\n".join(lines)
