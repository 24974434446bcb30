"""Whether a loss is additively separable over rows: what a row adds to it is the same, whatever the other rows are.

    rows of the results      a = a0 a1 a2 a3   and others,   b = a3 a0 a1 a2
    a mean over rows         L(a0 a1 a2 a3) + L(b0 b1 b2 b3)  =  L(a0 a1 b2 b3) + L(b0 b1 a2 a3)
    pairs, hardest rows      are not: the mean over microbatches, of fewer pairs, is another loss than the batch's

Also of rows with their targets, which tells of a row that is held against others' targets, or weighed by a sum over all:

    L(a0 a0 a1 a1) + L(a2 a2 a3 a3)  =  2 L(a0 a1 a2 a3)

A user's function is called once, as it would be: the ops that it calls are written down, and only these are called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from partitioner.distributed.run.record import Record, unless_refuted

Batch = Sequence[torch.Tensor]


def separable(
    record: Record,
    loss: torch.Tensor,
    counts: Sequence[torch.Tensor] | None,
    trained: Sequence[bool],
    by_row: Sequence[bool],
    rows: int,
) -> bool:
    """Whether a loss is a sum over rows, or a mean over what counts of them.

    Args:
        record: of how it was made of a microbatch: of its results, inputs and targets.
        loss: a scalar.
        counts: what it is seen to be divided by, if it is; else rows are not taken with their targets.
        trained: which of those given are results that have a gradient; one may have several rows for each of the batch's.
        by_row: which of those given have rows.
        rows: of the microbatch; of one alone nothing is said.

    Returns:
        ``True`` also where that cannot be said: of large results, of ops that cannot be called again, of infinite losses.

    Example:
        >>> x, target = torch.randn(4, 3, requires_grad=True) * 1, torch.randn(4, 3)
        >>> def is_separable(loss):
        ...     with Record([x, target]) as record:
        ...         made = loss(x, target)
        ...     return separable(record, made, [], [True, False], [True, True], 4)
        >>> is_separable(torch.nn.functional.mse_loss)
        True
        >>> is_separable(lambda x, target: (x @ target.T).log_softmax(1).diag().mean())
        False
    """
    if rows < 2 or not any(trained) or not record.repeats(loss):
        return True
    wanted = [loss, *filter(record.made, counts or ())]
    known = counts is not None and record.knows(rows)
    together = by_row if known else None
    found: dict[int, torch.Tensor] = {}  # by identity: a batch stands in several sums

    def run(batch: Batch) -> torch.Tensor:
        if id(batch) not in found:
            found[id(batch)] = torch.stack([each.double().reshape(()) for each in record.replay(batch, wanted)])
        return found[id(batch)]

    told = unless_refuted(lambda: all(_adds_up(run, *pair) for pair in [*_batches(record.given, trained, together, rows)]))
    return told is not False


def _batches(
    given: Batch, trained: Sequence[bool], together: Sequence[bool] | None, rows: int
) -> Iterable[tuple[Sequence[Batch], Sequence[Batch]]]:
    """Pairs of batches, and pairs that have the same rows: of results alone, and of all that has rows."""
    turned = [each.roll(len(each) // rows, 0) if turns else each for each, turns in zip(given, trained, strict=True)]
    places = torch.arange(rows)
    for first in (places < rows // 2, places % 2 == 0):
        yield (given, turned), (_mixed(first, given, turned), _mixed(first, turned, given))
    if together is not None:
        for order in (places, torch.cat([places[::2], places[1::2]]), places.roll(rows // 4)):  # the hardest may lie in both
            twice = order.repeat_interleave(2)
            yield [_taken(given, together, each) for each in (twice[:rows], twice[rows:])], (given, given)


def _mixed(first: torch.Tensor, one: Batch, other: Batch) -> Batch:
    """Some rows of one batch, and the rest of another; where they do not differ, as they are."""

    def mixed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        along = first.repeat_interleave(len(a) // len(first)).to(a.device)
        return torch.where(along.view(-1, *[1] * (a.dim() - 1)), a, b)

    return [a if a is b else mixed(a, b) for a, b in zip(one, other, strict=True)]


def _taken(given: Batch, by_row: Sequence[bool], places: torch.Tensor) -> Batch:
    return [each[places.to(each.device)] if rows else each for each, rows in zip(given, by_row, strict=True)]


def _adds_up(run: Callable[[Batch], torch.Tensor], left: Sequence[Batch], right: Sequence[Batch]) -> bool:
    """Whether two batches' losses, weighed by what counts in them, come to as much as those of two others."""
    found = torch.stack([run(each) for each in (*left, *right)])
    losses, counts = found[:, :1], found[:, 1:]
    counts = counts[:, ~counts.isnan().any(0)]  # the others are of a row alone
    varied = (counts != counts[0]).any(0)
    if varied.any():
        if not varied.all() or (counts != counts[:, :1]).any():
            return True  # terms that are means of different things
        if (losses == 0).any():
            return True  # nothing counts in one, which is divided by one all the same
        losses = torch.stack([losses[:, 0] * counts[:, 0], counts[:, 0]], 1)
    if not losses.isfinite().all():
        return True
    gaps, spread = (losses[:2].sum(0) - losses[2:].sum(0)).abs(), losses.amax(0) - losses.amin(0)
    return bool((gaps <= 1e-5 * spread + 1e-9 * losses.abs().amax(0)).all())
