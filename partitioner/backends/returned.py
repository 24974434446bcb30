"""Arguments that lie elsewhere than a program wants them: what it has written to its own is brought back to the caller's.

    caller's x  --brought-->  x on the program's device, which ops write  --write_back-->  caller's x
                              a view of it that is a result               --as_given-->    the same view of the caller's

It is left as eager leaves it. What no op that autograd records has written keeps its history, so a leaf may be written through
``x.detach()``; and its version goes up if that of the moved one did, for some ops count as writers only to keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from partitioner.backends.nodes import move
from partitioner.model.storage import is_dense, overlaps, set_version, storage_key, version_of

Mark = tuple[Any, int]
"""What writing changes of a tensor: the node that autograd has for it, and how often it was written; -1 if nobody counts."""


def _mark(tensor: torch.Tensor) -> Mark:
    """The mark of a tensor at this moment. Autograd makes nodes anew for written views, not for the base."""
    with torch._C.DisableTorchFunctionSubclass():
        base = tensor._base if tensor._is_view() else tensor
        assert base is not None
        return base.grad_fn, version_of(tensor)


def brought(value: Any, device: str) -> Any:
    """An argument on a device, in the same layout, but where a gradient would be shared out: a copy of a view has no gaps.

    Example:
        >>> brought(torch.ones(3, 8)[:, ::2], "meta").stride()
        (8, 2)
    """
    if not isinstance(value, torch.Tensor) or str(value.device) == device:
        return move(value, device)
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():  # where it would lose its version
        there = _in_its_layout(value, device)
    if value.requires_grad and not (there.requires_grad or torch.is_grad_enabled()):
        with torch._C.DisableTorchFunctionSubclass():
            (there if there._base is None else there._base).requires_grad_()  # and so do its views, under no_grad, too
    if not there.is_inference():
        set_version(there, version_of(value))  # which forward may ask for
    return there


def _in_its_layout(value: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the strides of a tensor, made of all that lies between its elements."""
    plain = value.is_nested or value.layout is not torch.strided or value.is_contiguous() or value.numel() == 0
    if plain or (value.requires_grad and (0 in value.stride() or overlaps(value))) or is_dense(value):
        moved: torch.Tensor = move(value, device)
        return moved
    span = 1 + sum(stride * (size - 1) for stride, size in zip(value.stride(), value.size(), strict=True))
    whole: torch.Tensor = move(value.as_strided((span,), (1,)), device)
    return whole.as_strided(value.size(), value.stride(), 0)


def as_given(given: Sequence[Any], moved: Sequence[Any], results: list[Any], numbers: Sequence[int]) -> None:
    """Let results that lie in an argument's memory lie in the caller's, if the argument was moved.

    Args:
        given: the arguments as the caller has them.
        moved: the arguments as the program had them.
        results: of the program; changed.
        numbers: positions of the results that may lie in the memory of an argument.
    """
    pairs = zip(given, moved, strict=True)
    owners = {
        storage_key(there): (here, there) for here, there in pairs if there is not here and isinstance(there, torch.Tensor)
    }
    for number in numbers if owners else ():
        result = results[number]
        here, there = owners.get(storage_key(result), (None, None)) if isinstance(result, torch.Tensor) else (None, None)
        if result is there:
            results[number] = here
        elif here is not None and there is not None and _form(here) == _form(there) and _form(result)[0] == _form(here)[0]:
            start = here.storage_offset() + result.storage_offset() - there.storage_offset()
            view = here.as_strided(result.size(), result.stride(), start)
            results[number] = view if view.requires_grad == result.requires_grad else view.detach()


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    """How a tensor's memory is read: kinds of its elements, and strides; no two are alike of those that have none."""
    if tensor.is_nested or tensor.layout is not torch.strided:
        return (object(),)
    return (tensor.dtype, tensor.is_conj(), tensor.is_neg()), tensor.stride()


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
