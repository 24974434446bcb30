"""Losses that are no means over rows: the mean of the sums of microbatches and copies is a part of the sum over the batch.

    L(a0 a0 a1 a1 a2 a2)  =   L(a0 a1 a2)     a mean
                          = 2 L(a0 a1 a2)     a sum; something else, of a mean and a sum

Numbers are written down with a loss's ops, and one of them may be the number of rows, as in ``x.sum() / len(x)``; rows that a
loop takes one by one are told by numbers, too. Of such, ops tell nothing, and the function is asked (`twice.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partitioner.distributed.run.record import Record, unless_refuted

LARGE = 2**40
"""More than any number of rows; slices end there."""


def is_mean(record: Record, loss: torch.Tensor, by_row: Sequence[bool], rows: int, parts: int) -> bool | None:
    """Whether a loss is a mean over rows.

    Args:
        record: of how it was made of a microbatch.
        loss: a scalar.
        by_row: which of the tensors given have a row for each of the microbatch's, or several.
        rows: of the microbatch.
        parts: microbatches of all copies; by so much a sum is multiplied that is to be that of the batch.

    Returns:
        ``None`` where that hangs on what a number stands for; ``True`` also of what cannot be called again.

    Example:
        >>> x = torch.randn(3, 5)
        >>> def is_mean_of(loss):
        ...     with Record([x]) as record:
        ...         made = loss(x)
        ...     return is_mean(record, made, [True], 3, 2)
        >>> is_mean_of(lambda x: x.square().mean()), is_mean_of(lambda x: -0.5 * x.square().sum())
        (True, False)
        >>> is_mean_of(lambda x: x.square().sum() / len(x)), is_mean_of(lambda x: x[0].mean() + x[1].mean() + x[2].mean())
        (None, None)
    """
    if not any(by_row) or not (record.knows(rows) and record.repeats(loss)):
        return True
    if may_divide(record, loss, rows, parts):
        return None

    known = [each.detach() for each in record.given]
    halved = [each / 2 if each.is_floating_point() else each for each in known]  # a probability is one still

    def value(others: Sequence[torch.Tensor]) -> float:
        """With other rows behind those that there were."""
        pairs = zip(known, others, by_row, strict=True)
        return record.replay([torch.cat(pair) if has else pair[0] for *pair, has in pairs], [loss], rows)[0].item()

    def told() -> bool | None:
        twice = value(known)
        if differ(record.replay(known, [loss])[0].item(), twice):
            return None if record.told else False
        return True if differ(twice, value(halved)) else None  # else no op reads them: rows are taken by their numbers

    return unless_refuted(told)


def differ(one: float, other: float) -> bool:
    """Whether two losses are not the same, up to rounding; what is no number may be any."""
    return abs(one - other) > 1e-5 * abs(one) + 1e-12


def may_divide(record: Record, loss: torch.Tensor, rows: int, parts: int) -> bool:
    """Whether a number in a loss may be that of its rows, or of all microbatches."""
    sizes, factors = ([abs(each) for each in found if 0 < abs(each) < LARGE] for found in record.numbers(loss))
    divides = any(_is_multiple(1 / each, rows) for each in factors)
    return divides or parts in factors or any(_is_multiple(each, rows) for each in (*sizes, *factors))


def multiplies(record: Record, loss: torch.Tensor, parts: int) -> bool:
    """Whether something in a loss is multiplied by all microbatches: a sum that is to be that of the batch."""
    return any(abs(each) == parts for each in record.numbers(loss)[1])


def _is_multiple(number: float, rows: int) -> bool:
    times = round(number / rows)
    return times > 0 and abs(number - times * rows) < 1e-6 * number
