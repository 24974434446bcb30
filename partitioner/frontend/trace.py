"""Module in, Graph out: capture, analyse, compare with eager; on a difference try the next tracer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from partitioner.errors import DifferenceError, InputError, TraceError
from partitioner.frontend.analysis.build import build_graph
from partitioner.frontend.capture.capture import Refused
from partitioner.frontend.capture.tracers import attempts, why
from partitioner.frontend.check import compare, locate_difference, try_eager
from partitioner.ir.graph import Graph
from partitioner.ir.signature import Open
from partitioner.ir.units import format_duration
from partitioner.model.call import Call

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
    for name, attempt in attempts(module, call, open_dims):
        if name in skip:
            continue
        try:
            capture = attempt()
        except Refused as refused:
            refusals.append((name, refused))
            continue
        graph = build_graph(capture, module, None if call is None else call.tensors)
        notes = tuple(f"{front_end} refused: {refused.reason}" for front_end, refused in refusals)
        return replace(graph, tracer=name, notes=(*notes, *graph.notes))
    raise TraceError(why(module, call, refusals, skip))


def faithful_graph(module: nn.Module, call: Call, open_dims: Open = frozenset()) -> Graph:
    """Trace, and compare with the model; on a difference try the next front end.

    Raises:
        TraceError: no front end can trace the model.
        DifferenceError: those that can trace it do not compute what it computes.
    """
    differing: dict[str, str] = {}
    while True:
        try:
            graph = trace(module, call, skip=tuple(differing), open_dims=open_dims)
        except TraceError as error:
            if not differing:
                with naming_the_model(module):
                    try_eager(module, call)  # arguments that eager does not take either are no fault of tracing
                raise
            found = "\n".join(f"  {name}: {difference}" for name, difference in differing.items())
            raise DifferenceError(
                f"no traced program computes what {type(module).__name__} computes.\n{found}\n{error}"
            ) from error
        start = time.perf_counter()
        with naming_the_model(module):
            comparison = compare(graph, module, call)
        if comparison.difference is None:
            note = f"compared with eager on two inputs in {format_duration(time.perf_counter() - start)}: equal"
            notes = [f"{name} differed from eager in {what}" for name, what in differing.items()]
            return replace(graph, notes=(*graph.notes, *notes, *(comparison.notes or (note,))))
        differing[graph.tracer] = f"{comparison.difference}. {locate_difference(graph, module, call)}".strip()


@contextmanager
def naming_the_model(module: nn.Module) -> Iterator[None]:
    """What the model itself raises on its example inputs is the caller's to mend."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{type(module).__name__} fails on the example inputs. {type(error).__name__}: {error}") from error
