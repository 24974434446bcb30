"""A graph of a call, run again and again without a trace: on stand-ins of its arguments, and with no code of the model's.

State and arguments are read where they lie. What the graph writes is written to a copy, made anew for each run. Gradients are
asked of leaves of their own, so that no hook of a tensor is called and nothing is added to ``grad``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from partitioner.backends import Executable
from partitioner.backends.bodies import is_torchs
from partitioner.ir.access import ANY
from partitioner.runtime.pieces import Piece


def can_be_repeated(piece: Piece, arguments: Sequence[Any], strangers: bool = False) -> bool:
    """Whether a graph can be run on stand-ins: what it does is known, and a copy can take the place of what it writes.

    Args:
        piece: the graph.
        arguments: of a call.
        strangers: whether it may call what is not torch's: a kernel of the user's may print, or count how often it runs.
    """
    graph = piece.plan.graph
    if any(access.resource == ANY for op in graph.ops for access in op.accesses):
        return False
    if not strangers and not all(is_torchs(node) for node in graph.fx.nodes if node.op.startswith("call_")):
        return False
    if not all(map(_is_plain, arguments)) or any(len(positions) > 1 for positions in piece.shared):
        return False
    return not any(isinstance(arguments[position], Tensor) and arguments[position].requires_grad for position in piece.written)


def _is_plain(value: Any) -> bool:
    """Whether an argument is a tensor with values, in one piece of memory and of no class of the user's, or a number."""
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_meta
    return isinstance(value, int | float)


def repeatable(piece: Piece, executable: Executable, arguments: Sequence[Any], backward: bool) -> Callable[[], None]:
    """A run of a graph that leaves no trace.

    Args:
        piece: the graph.
        executable: what is to run it.
        arguments: of a call.
        backward: whether a backward from all results belongs to it.
    """
    leaves = [_leaf(value) for value in arguments]
    wanted = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]

    def run() -> None:
        given = list(leaves)
        for position in piece.written:
            given[position] = leaves[position].clone() if isinstance(leaves[position], Tensor) else leaves[position]
        results = executable(given)
        roots = [each for each in results if isinstance(each, Tensor) and each.requires_grad] if backward else []
        if roots and wanted:
            torch.autograd.grad(roots, wanted, [torch.ones_like(root) for root in roots], allow_unused=True)

    return run


def _leaf(value: Any) -> Any:
    """What stands for an argument: the same memory, with no history and no hooks."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
