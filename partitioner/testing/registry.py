"""The kinds of step, by name: each is a function that writes its lines with a `Writer`."""

from __future__ import annotations

from collections.abc import Callable

from .recipe import Step
from .writer import Writer

StepKind = Callable[[Writer, Step], None]
REGISTRY: dict[str, StepKind] = {}


def kind(function: StepKind) -> StepKind:
    """Registers a kind of step under the function's name."""
    REGISTRY[function.__name__] = function
    return function
