"""Functions in double precision, whatever their own: sums of the same numbers differ by 1e-16 then, and not by 1e-3."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from partitioner.frontend.analysis.static import mutated_arguments


class Doubled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each op within it takes and gives double precision, also one that casts to another, as under autocast.

    Example:
        >>> with Doubled():
        ...     torch.tensor([0.1]).bfloat16().sum().item()
        0.10000000149011612
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or "c10d" in func.namespace:
            raise TypeError(f"{func} is of no number of rows, or talks to other ranks")
        if any(_is_single(leaf) for leaf in tree_leaves([*mutated_arguments(func, args, kwargs)])):
            raise TypeError(f"{func} writes to what was there before")
        named = zip((each.name for each in func._schema.arguments), args, strict=False)
        args = [False if name == "half_to_float" else doubled(value) for name, value in named]  # which double cannot be
        return doubled(func(*args, **{name: doubled(value) for name, value in kwargs.items()}))


def doubled(value: Any) -> Any:
    """Whatever a value has inside, with its tensors, and dtypes, in double precision."""
    return tree_map(_doubled, value)


def _is_single(leaf: Any) -> bool:
    """Whether a leaf is a tensor of less than double precision."""
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype is not torch.float64


def _doubled(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return torch.float64 if leaf.is_floating_point else leaf
    return leaf.double() if _is_single(leaf) else leaf
