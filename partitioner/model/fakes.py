"""What stands for values while a model is traced: fake tensors, and symbolic numbers where sizes are open."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_UNKNOWN: dict[type, Any] = {torch.SymInt: 2, torch.SymFloat: 1.0, torch.SymBool: False}
"""What is taken for a symbolic number that has no number, as a size of ragged tensors."""


def number_of(value: Any) -> Any:
    """A symbolic number as the number that it was in the example, if that is known; anything else as it is."""
    if type(value) not in _UNKNOWN:
        return value
    hint = value.node.hint
    if hint is None and (seen := getattr(getattr(value.node, "shape_env", None), "var_to_hint_override", None)):
        found = value.node.expr.xreplace(seen)
        hint = None if getattr(found, "free_symbols", ()) else value.node.pytype(found)
    return hint if isinstance(hint, int | float) else _UNKNOWN[type(value)]


def layout_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and the strides of a dense tensor, as numbers."""
    return tuple(map(number_of, tensor.shape)), tuple(map(number_of, tensor.stride()))


def reach_of(tensor: torch.Tensor) -> int:
    """Elements from the first to the last of a dense tensor, in the order of its storage.

    Example:
        >>> reach_of(torch.empty(4, 6)[:, :2]), reach_of(torch.empty(3, 1).expand(3, 5))
        (20, 3)
    """
    shape, strides = layout_of(tensor)
    return 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) if all(shape) else 0


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements.

    Example:
        >>> bytes_of(torch.empty(2, 3))
        24
    """
    return int(math.prod(map(number_of, tensor.shape))) * tensor.element_size()


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor of the same form, a fake under a mode of fakes.

    Raises:
        NotImplementedError: it is not dense.
    """
    if tensor.layout is not torch.strided:
        raise NotImplementedError(tensor.layout)
    shape, stride = layout_of(tensor)
    return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors among the leaves of a tree."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        yield from (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
