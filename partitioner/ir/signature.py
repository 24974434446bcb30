"""The calling convention of a graph: arguments in, tensors through, results out; and what was burned in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.utils._pytree import TreeSpec


@dataclass(frozen=True, order=True)
class AttributeRead:
    """An attribute that the model's forward read while it was traced: the module's qualified name, and the attribute's."""

    path: str
    name: str


@dataclass(frozen=True)
class Signature:
    """How a call's arguments become graph inputs, and graph outputs become the call's result.

    The tensor leaves of ``(args, kwargs)`` are the graph's inputs, in order; every other leaf was burned in by tracing and
    is a guard. ``accepts`` is asked once for every new set of shapes. ``attribute_reads`` are attributes of the model that were
    burned in, and ``modes`` whether the caller's modes were.
    """

    in_spec: TreeSpec
    constants: tuple[tuple[int, Any], ...]
    out_spec: TreeSpec
    accepts: Callable[[Sequence[torch.Tensor]], str | None] = field(default=lambda tensors: None)
    attribute_reads: tuple[AttributeRead, ...] = ()
    modes: bool = False


Open = frozenset[tuple[int, int]]
"""Dimensions that a program should leave open, as ``(number of the tensor leaf, dimension)``."""
