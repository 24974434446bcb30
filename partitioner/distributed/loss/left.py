"""Buffers in which a forward leaves numbers of its rows for the next call: a queue of keys, a codebook, a mean of its own.

    one process      rows 0 to 7 are looked up in the queue, and then put into it
    2 microbatches   rows 0 to 3 are put into it before rows 4 to 7 are looked up; each copy has a queue of its own

Batch norm does so, too, and what becomes of its statistics is documented.
"""

from __future__ import annotations

import warnings

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from partitioner.distributed.loss.within import of_batch
from partitioner.distributed.ranks import here
from partitioner.distributed.traced.example import Example
from partitioner.ir.graph import Op

NORMS = ("batch_norm", "instance_norm")
"""Ops whose running statistics are documented; in a checkpointed layer they are part of another op."""


def warn_of_left(model: nn.Module, example: Example, parts: int) -> None:
    """Warn, on the first rank, of a model that leaves numbers of its rows in a buffer.

    Args:
        model: what was traced.
        example: a call with a microbatch.
        parts: microbatches of all copies.
    """
    found = left_in(model, example) if parts > 1 and here() == 0 else None
    if found is not None:
        op, key = found
        warnings.warn(
            f"{type(model).__name__} leaves in {key} what it computes of its rows ({op.where or op.name}), and each of {parts} "
            "microbatches and copies finds what the one before it left there, not what the last batch did. With "
            "microbatches: 1, and without a data axis, it does",
            stacklevel=2,
        )


def left_in(model: nn.Module, example: Example) -> tuple[Op, str] | None:
    """The first op that writes numbers of the batch to a buffer, and which.

    Args:
        model: what was traced.
        example: a call of it.

    Example:
        >>> import torch
        >>> from partitioner.distributed.traced.example import example_in
        >>> class Queue(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("keys", torch.zeros(4, 3))
        ...     def forward(self, x):
        ...         found = x @ self.keys.T
        ...         self.keys.copy_(torch.cat([self.keys[len(x):], x.detach()]))
        ...         return found
        >>> queue, x = Queue(), torch.randn(2, 3, requires_grad=True)
        >>> op, key = left_in(queue, example_in(queue, x, None, 1))
        >>> op.target, key
        ('copy_', 'keys')
    """
    graph = example.traced.graph
    for op in graph.ops:
        if op.target in NORMS or not of_batch(example, graph.nodes[op.name]):
            continue
        for access in op.accesses:
            key = access.resource.removeprefix("self.")
            held = example.traced.state.get(key) if access.write else None
            if held is not None and held.is_floating_point() and not isinstance(_owner(model, key), _NormBase):
                return op, key
    return None


def _owner(model: nn.Module, key: str) -> nn.Module | None:
    """The layer that has a buffer."""
    return dict(model.named_modules(remove_duplicate=False)).get(key.rpartition(".")[0])
