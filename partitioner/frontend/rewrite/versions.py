"""What Dynamo does after ``x.data = other``, which eager does not count as a write: it takes one from the count of writes."""

from __future__ import annotations

import torch

from partitioner.model.storage import set_version


def uncounted(x: torch.Tensor) -> torch.Tensor:
    """``x``, as if it had been written once less. Of what was made under inference mode nobody counts, and Dynamo's own fails.

    Example:
        >>> x = torch.ones(2).mul_(2)
        >>> uncounted(x)._version
        0
    """
    if not x.is_inference():
        set_version(x, max(0, x._version - 1))
    return x


def count_as_eager(graph: torch.fx.Graph) -> None:
    """Let a graph of Dynamo's call `uncounted` in the place of Dynamo's own, which is another function each time."""
    for node in graph.nodes:
        if getattr(node.target, "__name__", "") == "_lower_version_count_by_1":
            node.target = uncounted
