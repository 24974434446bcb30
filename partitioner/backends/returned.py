"""Arguments that lie elsewhere than a program wants them: what it has written to its own is brought back to the caller's.

    caller's x  --move-->  x on the program's device, which ops write  --write_back-->  caller's x

It is left as eager leaves it. What no op that autograd records has written keeps its history, so a leaf may be written through
``x.detach()``; and its version goes up if that of the moved one did, for some ops count as writers only to keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from partitioner.model.storage import version_of

Mark = tuple[Any, int]
"""What writing changes of a tensor: the node that autograd has for it, and how often it was written; -1 if nobody counts."""


def _mark(tensor: torch.Tensor) -> Mark:
    """The mark of a tensor at this moment. Autograd makes nodes anew for written views, not for the base."""
    with torch._C.DisableTorchFunctionSubclass():
        base = tensor._base if tensor._is_view() else tensor
        assert base is not None
        return base.grad_fn, version_of(tensor)


def marked(given: Sequence[Any], moved: Sequence[Any], written: Sequence[int]) -> dict[int, Mark]:
    """The marks of arguments that were moved and may be written, by their position.

    Args:
        given: the arguments as the caller has them.
        moved: the arguments as the program has them.
        written: positions of those that it may write.
    """
    return {position: _mark(moved[position]) for position in written if moved[position] is not given[position]}


def write_back(given: Sequence[Any], moved: Sequence[Any], marks: Mapping[int, Mark]) -> None:
    """Let the caller's tensors have what a program wrote to arguments that it had moved.

    Args:
        given: the arguments as the caller has them.
        moved: the arguments as the program had them.
        marks: what `marked` said before it ran.
    """
    for position, before in marks.items():
        _bring_back(given[position], moved[position], before)


def _bring_back(given: torch.Tensor, moved: torch.Tensor, before: Mark) -> None:
    (history, version), (old_history, old_version) = _mark(moved), before
    if history is not old_history:
        with torch.enable_grad():
            given.copy_(moved)
        return
    counts = version != old_version or moved.is_inference()
    with torch.no_grad(), torch.inference_mode(given.is_inference()):
        (given.detach() if counts else given.data).copy_(moved)
