"""Results that have a number for each pair of rows, as the similarities of images and texts: whether a loss reads them all.

a0.b0  a0.b1   |                  of a batch of four rows there are sixteen, and two microbatches have eight of these:
a1.b0  a1.b1   |                  whatever is made of those of two different rows, its mean is none of the batch's
---------------+---------------
               |  a2.b2  a2.b3    those of a row with itself are all there
               |  a3.b2  a3.b3
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partitioner.distributed.run.record import Record, unless_refuted
from partitioner.distributed.run.sums import differ

Shape = tuple[int, ...]


def dimensions_of_pairs(shape: Shape, of_twice: Shape, rows: int) -> tuple[int, int] | None:
    """The two dimensions in which a result has a row for each of a batch's, if there are two.

    Args:
        shape: of a microbatch's result.
        of_twice: of one with twice the rows.
        rows: of the microbatch.

    Example:
        >>> dimensions_of_pairs((4, 4), (8, 8), 4), dimensions_of_pairs((4, 4), (8, 4), 4)
        ((0, 1), None)
    """
    sizes = enumerate(zip(shape, of_twice, strict=True)) if len(shape) == len(of_twice) else ()
    growing = [place for place, pair in sizes if pair == (rows, 2 * rows)]
    return (growing[0], growing[1]) if len(growing) > 1 else None


def reads_pairs(record: Record, loss: torch.Tensor, place: int, dimensions: tuple[int, int]) -> bool:
    """Whether a loss depends on what is of two different rows. Of a microbatch of one row, which has none, it does.

    Args:
        record: of how the loss was made.
        loss: a scalar.
        place: of the result among those given to it.
        dimensions: in which that has rows.

    Returns:
        ``False`` also where that cannot be said.

    Example:
        >>> pairs = torch.randn(3, 3)
        >>> def reads(loss):
        ...     with Record([pairs]) as record:
        ...         made = loss(pairs)
        ...     return reads_pairs(record, made, 0, (0, 1))
        >>> reads(lambda pairs: pairs.square().mean()), reads(lambda pairs: pairs.diagonal().mean())
        (True, False)
    """
    result = record.given[place]
    rows = result.shape[dimensions[0]]
    if rows == 1:
        return True
    own = torch.eye(rows, dtype=torch.bool, device=result.device)
    own = own.view(*(rows if each in dimensions else 1 for each in range(result.dim())))

    def value(given: Sequence[torch.Tensor]) -> float:
        return record.replay(given, [loss])[0].item()

    def moved(by: float) -> list[torch.Tensor]:
        return [torch.where(own, each, each + by) if number == place else each for number, each in enumerate(record.given)]

    told = record.repeats(loss) and unless_refuted(
        lambda: any(differ(value(record.given), value(moved(by))) for by in (1.0, -1.0))  # a hinge gives way in one direction
    )
    return told is True
