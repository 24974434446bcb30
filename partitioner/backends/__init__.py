"""Backends: a plan becomes something that can be called. A new one is a file of its own and a line here.

What a backend makes is called with the values of the graph's placeholders, state and inputs, and gives the graph's results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from partitioner.backends.reference import Reference
from partitioner.backends.streams import Streams
from partitioner.backends.threads import Threads
from partitioner.ir.plan import Plan


class Executable(Protocol):
    """A plan that can be called."""

    plan: Plan

    @property
    def code(self) -> str:
        """What was generated, for people."""

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run on the values of the graph's placeholders."""


BACKENDS: dict[str, Callable[[Plan], Executable]] = {
    "reference": Reference,
    "streams": Streams,
    "threads": Threads,
}


def default_backend(plan: Plan) -> str:
    """The backend for a plan's machine: streams where it has an accelerator, threads otherwise."""
    return "streams" if any(lane.kind != "cpu" for lane in plan.machine.lanes) else "threads"
