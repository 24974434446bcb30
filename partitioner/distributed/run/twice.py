"""A loss function that is called again, of a microbatch twice over, where its ops do not tell whether it is a mean over rows.

    a0 a1 a2 a3                  loss.sum() / 4  =  loss.sum() / len(x)      the same ops, with the same numbers
    a0 a1 a2 a3 a0 a1 a2 a3      twice as much      as much                  a batch of two equal microbatches

A user's function may count its calls, draw, or weigh by those before. Of one that gives another loss of the same rows when it
is called once more nothing is said, nor of one that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from partitioner.distributed.run.record import Record, has_rows, unless_refuted
from partitioner.distributed.run.sums import differ, multiplies
from partitioner.model.process import process_undo
from partitioner.model.quiet import quiet


def of_twice(
    function: Callable[..., torch.Tensor],
    given: Callable[[int], tuple[Any, ...]],
    record: Record,
    loss: torch.Tensor,
    parts: int,
) -> tuple[float, float] | None:
    """What a loss is of a microbatch, and of it twice over.

    Args:
        function: the user's.
        given: what it is called with, of a microbatch so many times over; fresh tensors.
        record: of the ops of its first call.
        loss: what that gave.
        parts: microbatches of all copies; by so much a sum is multiplied that is to be that of the batch.

    Returns:
        ``None`` where nothing can be said: it is such a sum, too.

    Example:
        >>> x = torch.ones(3)
        >>> def asked(loss):
        ...     with Record([x]) as record:
        ...         made = loss(x)
        ...     return of_twice(loss, lambda times: (torch.cat([x] * times),), record, made, 2)
        >>> asked(lambda x: x.sum() / 3), asked(lambda x: x.sum() / len(x)), asked(lambda x: x.sum() * 2)
        ((1.0, 2.0), (1.0, 1.0), None)
    """
    undo = process_undo()
    try:
        with quiet(), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            once, more = value_of(record, loss), _called(function, given(2), parts)
            if not differ(once, more):
                return once, more
            return None if differ(once, _called(function, given(1))) else (once, more)
    except Exception:  # the user's own, of a call that is none of the user's; or nothing can be said
        return None
    finally:
        undo()


def over(value: Any, times: int, rows: int | None = None) -> Any:
    """A tensor so many times over if it has as many rows; a copy of another, and whatever is none as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    several = times if rows is None or has_rows(value, rows) else 1
    return torch.cat([value.detach()] * several) if several > 1 else value.detach().clone()


def _called(function: Callable[..., torch.Tensor], given: tuple[Any, ...], parts: int = 0) -> float:
    with Record([leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]) as record:
        loss = function(*given)
    if not record.complete or record.drawn or (parts and multiplies(record, loss, parts)):
        raise ValueError("nothing can be said")
    return value_of(record, loss)


def value_of(record: Record, loss: torch.Tensor) -> float:
    """A loss in double precision, for halves would differ by rounding alone.

    Raises:
        ValueError: some op does not take that.
    """
    found = unless_refuted(lambda: record.replay(record.given, [loss])[0].item())
    if found is None:
        raise ValueError("nothing can be said")
    return found
