"""What every backend makes, and whatever stands around that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from partitioner.ir.plan import Plan


class Executable(Protocol):
    """A plan that can be called."""

    plan: Plan

    @property
    def code(self) -> str:
        """What was generated, for people."""

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run on the values of the graph's placeholders."""
