"""Module in, Graph out: the choice of a front end, and what to do when one refuses.

In order: `torch.fx.symbolic_trace`, which keeps modules and hooks and is open in every shape; `torch.export`, where there are
example inputs; `symbolic_trace` again with the submodules to blame called as a whole. When all refuse, one error says why
each did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import nn

from partitioner.errors import TraceError
from partitioner.ir.call import Call, guess_call
from partitioner.ir.graph import Graph
from partitioner.trace.build import build_graph
from partitioner.trace.capture import Capture, Refused
from partitioner.trace.exporting import Open, capture_export
from partitioner.trace.symbolic import capture_symbolic

Attempt = tuple[str, Callable[[], Capture]]

MAX_LEAVES = 32
"""Submodules that the last front end gives up before it gives up itself."""


_ONE_AT_A_TIME = threading.RLock()
"""Front ends patch `nn.Module` and other things that belong to the whole process."""


def trace(module: nn.Module, call: Call | None, *, skip: Sequence[str] = (), open_dims: Open = frozenset()) -> Graph:
    """Trace ``module``.

    Args:
        module: the model; left as it was.
        call: example arguments, or ``None`` to guess one tensor for each parameter of forward without a default.
        skip: front ends not to try, by name.
        open_dims: dimensions that the program should leave open, as ``(number of the tensor, dimension)``.

    Returns:
        The graph, with the front ends that refused in its notes.

    Raises:
        TraceError: every front end refused.
    """
    with _ONE_AT_A_TIME:
        return _trace(module, call, skip, open_dims)


def _trace(module: nn.Module, call: Call | None, skip: Sequence[str], open_dims: Open) -> Graph:
    refusals: list[tuple[str, Refused]] = []
    for name, attempt in _attempts(module, call, open_dims):
        if name in skip:
            continue
        try:
            capture = attempt()
        except Refused as refused:
            refusals.append((name, refused))
            continue
        graph = build_graph(capture, module, None if call is None else call.tensors)
        notes = tuple(f"{front_end} refused: {refused.reason}" for front_end, refused in refusals)
        return replace(graph, frontend=name, notes=(*notes, *graph.notes))
    raise TraceError(_why(module, call, refusals, skip))


def _attempts(module: nn.Module, call: Call | None, open_dims: Open) -> Iterator[Attempt]:
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


def _why(module: nn.Module, call: Call | None, refusals: list[tuple[str, Refused]], skip: Sequence[str]) -> str:
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
