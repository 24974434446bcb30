"""Functions of ours that stand in graphs for those that Dynamo would write there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.output_graph import SubgraphTracer

from partitioner.frontend.capture.amended import amends

STANDS_FOR: dict[Any, Callable[..., Any]] = {}
"""By what Dynamo calls, what stands in its place; whoever has such a function adds it."""


@amends(SubgraphTracer, "create_proxy")
def _create_proxy(plain: Callable[..., Any], self: Any, kind: str, target: Any, *rest: Any, **named: Any) -> Any:
    return plain(self, kind, STANDS_FOR.get(target, target), *rest, **named)
