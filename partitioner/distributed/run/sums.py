"""Losses that are no means over rows: the mean of the sums of microbatches and copies is a part of the sum over the batch.

    L(a0 a0 a1 a1 a2 a2)  =   L(a0 a1 a2)     a mean
                          = 2 L(a0 a1 a2)     a sum; something else, of a mean and a sum

Numbers are written down with a loss's ops, and one of them may be the number of rows: nothing is said of ``x.sum() / len(x)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partitioner.distributed.run.record import Record, unless_refuted

LARGE = 2**40
"""More than any number of rows; slices end there."""


def is_mean(record: Record, loss: torch.Tensor, by_row: Sequence[bool], rows: int, parts: int) -> bool:
    """Whether a loss is a mean over rows.

    Args:
        record: of how it was made of a microbatch.
        loss: a scalar.
        by_row: which of the tensors given have a row for each of the microbatch's, or several.
        rows: of the microbatch.
        parts: microbatches of all copies; by so much a sum is multiplied that is to be that of the batch.

    Returns:
        ``True`` also where that cannot be said.

    Example:
        >>> x = torch.randn(3, 5)
        >>> def is_mean_of(loss):
        ...     with Record([x]) as record:
        ...         made = loss(x)
        ...     return is_mean(record, made, [True], 3, 2)
        >>> is_mean_of(lambda x: x.square().mean()), is_mean_of(lambda x: -0.5 * x.square().sum())
        (True, False)
        >>> is_mean_of(lambda x: x.square().sum() / len(x))
        True
    """
    if not any(by_row) or not (record.knows(rows) and record.repeats(loss)) or may_divide(record, rows, parts):
        return True
    twice = [torch.cat([each.detach()] * 2) if rows else each for each, rows in zip(record.given, by_row, strict=True)]

    def is_the_same() -> bool:
        (once,), (more,) = (record.replay(each, [loss], rows) for each in (record.given, twice))
        return not bool((more - once).abs() > 1e-5 * once.abs())  # nor of what is no number

    return unless_refuted(is_the_same)


def may_divide(record: Record, rows: int, parts: int) -> bool:
    """Whether a number in a loss may be that of its rows, or of all microbatches."""
    sizes, factors = ([abs(each) for each in found if each and abs(each) < LARGE] for found in record.numbers())
    divides = any(each == parts or _is_multiple(1 / each, rows) for each in factors)
    return divides or any(_is_multiple(each, rows) for each in (*sizes, *factors))


def _is_multiple(number: float, rows: int) -> bool:
    times = round(number / rows)
    return times > 0 and abs(number - times * rows) < 1e-6 * number
