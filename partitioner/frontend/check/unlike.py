"""How two values differ beyond rounding, with all that they hold: tensors, containers, objects with attributes.

What is held may hold its holder, as a child its parent, or a flag the inverse of its inverse; each pair is looked at once.
"""

from __future__ import annotations

from typing import Any

import torch

Pair = tuple[Any, Any]


def unlike(mine: Any, theirs: Any) -> str | None:
    """The first difference between what the model gave and what the program gave, or ``None``.

    Example:
        >>> unlike({"a": [1, 2]}, {"a": [1, 3]})
        '2 in the model, 3 in the program'
    """
    waiting, seen = [(mine, theirs)], dict[tuple[int, int], Pair]()
    while waiting:
        pair = waiting.pop()
        if (key := (id(pair[0]), id(pair[1]))) in seen:
            continue
        seen[key] = pair  # kept, so that nothing else gets their places in memory
        held = _held(*pair)
        waiting += reversed(held or ())
        if held is None and (detail := _unlike(*pair)) is not None:
            return detail
    return None


def _held(mine: Any, theirs: Any) -> list[Pair] | None:
    """What two values hold, in pairs; ``None`` where they themselves are compared, or hold not equally much."""
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return [(list(mine.unbind()), list(theirs.unbind()))] if mine.is_nested and theirs.is_nested else None
    if type(mine) is not type(theirs):
        return None
    if isinstance(mine, dict):
        return [(mine[key], theirs[key]) for key in mine] if mine.keys() == theirs.keys() else None
    if isinstance(mine, list | tuple):
        return list(zip(mine, theirs, strict=True)) if len(mine) == len(theirs) else None
    has_attributes = isinstance(getattr(mine, "__dict__", None), dict) and not callable(mine)
    return [(vars(mine), vars(theirs))] if has_attributes else None


def _unlike(mine: Any, theirs: Any) -> str | None:
    """How two values differ that hold nothing, or not equally much: by their types, otherwise by ``==``."""
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return _unlike_tensors(mine, theirs)
    if type(mine) is not type(theirs):
        return f"{type(mine).__name__} in the model, {type(theirs).__name__} in the program"
    if isinstance(mine, list | tuple | dict):
        return "of different lengths"
    try:
        same = bool(mine == theirs)
    except Exception:  # a user's own type may compare as it likes
        return None
    return None if same else f"{mine!r} in the model, {theirs!r} in the program"


def _unlike_tensors(mine: torch.Tensor, theirs: torch.Tensor) -> str | None:
    if mine.is_mkldnn and theirs.is_mkldnn:
        mine, theirs = mine.to_dense(), theirs.to_dense()
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        return f"{tuple(mine.shape)} {mine.dtype} in the model, {tuple(theirs.shape)} {theirs.dtype} in the program"
    try:
        torch.testing.assert_close(theirs, mine, rtol=tolerance(mine.dtype), atol=tolerance(mine.dtype), equal_nan=True)
    except AssertionError:
        gap = (theirs.to(torch.float64) - mine.to(torch.float64)).abs().max() if not mine.is_complex() else float("nan")
        return f"values differ by up to {float(gap):.3g}"
    return None


def tolerance(dtype: torch.dtype) -> float:
    """Rounding that is allowed: lanes leave an op other numbers of threads than eager does."""
    return {torch.float16: 1e-2, torch.bfloat16: 2e-2, torch.float64: 1e-8}.get(dtype, 1e-4)
