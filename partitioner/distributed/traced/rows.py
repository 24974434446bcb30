"""The rows of a batch: how many there are, which tensors have them, and what has none that can be taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from partitioner.errors import InputError
from partitioner.model.call import Call


def refuse_not_dense(values: Any, whose: str) -> None:
    """Refuse tensors that are not strided: they have no slices of rows, and no bits that can be compared.

    Args:
        values: anything with tensors.
        whose: the beginning of the sentence, such as "the batch has".

    Raises:
        InputError: says of what layout one is.
    """
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and (leaf.layout != torch.strided or leaf.is_nested):
            kind = "nested" if leaf.is_nested else str(leaf.layout).removeprefix("torch.").strip("_")
            raise InputError(
                f"{whose} a {kind} tensor, which ranks cannot divide by rows, nor compare: give a dense one, or what it is "
                "made of, such as indices and values for index_add, or padded values and a mask"
            )


def rows_of(call: Call | None) -> int:
    """How many rows a batch has: those of the first of its tensors that has a dimension.

    Raises:
        InputError: it has none, or one that is not dense.
    """
    tensors = call.tensors if call is not None else ()
    refuse_not_dense(tensors, "example_inputs has")
    for tensor in tensors:
        if tensor.dim() and len(tensor):
            return len(tensor)
    raise InputError(
        "example_inputs has no tensor with rows that torch's pytree finds; give one rank's batch, or for mesh: auto that of "
        "the whole job, of tensors, tuples, lists, dicts, and classes told to torch.utils._pytree.register_dataclass"
    )


def by_rows(call: Call) -> tuple[bool, ...]:
    """Which of a call's tensors have as many rows as the first that has any."""
    rows = next((len(tensor) for tensor in call.tensors if tensor.dim() and len(tensor)), None)
    return tuple(tensor.dim() > 0 and len(tensor) == rows for tensor in call.tensors)


def growing(shape: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    """The dimensions in which a value has other sizes where its batch has more rows.

    Example:
        >>> growing((4, 6, 4), (8, 6, 8))
        (0, 2)
    """
    return tuple(place for place, sizes in enumerate(zip(shape, more, strict=True)) if sizes[0] != sizes[1])
