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
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from partitioner.frontend.analysis.static import draws, mutated_arguments

MOST = 2**24
"""Elements of the results beyond which nobody looks: each op is called again on as many."""

Batch = Sequence[torch.Tensor]


@dataclass(frozen=True)
class _Place:
    number: int


class Record(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the ops of ATen's that are called within it.

    Args:
        given: the tensors that may have other values when they are called again.
        by_row: whether whatever has rows is among them.

    Attributes:
        complete: whether they may be called again: none talks to other ranks, writes to what was there before, or is
            unknown to ATen.
        constants: tensors that were there before, and are none of those given.

    Example:
        >>> x = torch.tensor([1.0, 2.0])
        >>> with Record([x]) as record:
        ...     y = (x * 2).sum()
        >>> record.replay([torch.tensor([3.0, 4.0])], [y])
        [tensor(14., dtype=torch.float64)]
    """

    supports_higher_order_operators = True  # which are called, and end the record

    def __init__(self, given: Sequence[torch.Tensor], *, by_row: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given, self.by_row = given, by_row
        self.complete = True
        self.constants: list[torch.Tensor] = []
        self._calls: list[tuple[Any, Any, list[_Place | None]]] = []
        self._places: Any = WeakTensorKeyDictionary()  # what comes between is kept alive by nothing here
        self._count = 0
        for each in given:
            self._place(each)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or "c10d" in func.namespace:
            self.complete = False
            return func(*args, **kwargs)
        written = [leaf for leaf in tree_leaves([*mutated_arguments(func, args, kwargs)]) if isinstance(leaf, torch.Tensor)]
        self.complete &= all(each in self._places for each in written)
        noted = tree_map_only(torch.Tensor, self._noted, (args, kwargs))
        made = func(*args, **kwargs)
        if draws(func, args, kwargs):
            for leaf in (each for each in tree_leaves(made) if isinstance(each, torch.Tensor)):
                self._places.pop(leaf, None)  # the same random numbers, when ops are called again
        else:
            self._calls.append((func, noted, [self._place(each) for each in tree_leaves(made)]))
        return made

    def _place(self, value: Any) -> _Place | None:
        if not isinstance(value, torch.Tensor):
            return None
        if value not in self._places:
            self._places[value], self._count = _Place(self._count), self._count + 1
        place: _Place = self._places[value]
        return place

    def _noted(self, tensor: torch.Tensor) -> Any:
        if tensor not in self._places:
            self.constants.append(tensor)
        return self._places.get(tensor, tensor)

    def made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was given, or is a result of an op."""
        return tensor in self._places

    def replay(self, given: Batch, wanted: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Call the ops again, in double precision.

        Args:
            given: other values in place of those given.
            wanted: results, as they were the first time.

        Returns:
            what they are now.
        """
        held = {self._places[known]: _doubled(each.detach().clone()) for known, each in zip(self.given, given, strict=True)}
        for func, noted, places in self._calls:
            args, kwargs = tree_map(lambda leaf: held[leaf] if isinstance(leaf, _Place) else _doubled(leaf), noted)
            made = tree_leaves(func(*_doubled_options(func, args), **kwargs))
            held.update((place, each) for place, each in zip(places, made, strict=True) if place is not None)
        return [held[self._places[each]] for each in wanted]


def _doubled(leaf: Any) -> Any:
    """A tensor in double precision, or that dtype."""
    if isinstance(leaf, torch.dtype):
        return torch.float64 if leaf.is_floating_point else leaf
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _doubled_options(func: Any, args: Sequence[Any]) -> list[Any]:
    """A softmax of half precision gives single precision if it is asked to, and cannot of double precision."""
    names = [each.name for each in func._schema.arguments]
    return [False if name == "half_to_float" else value for name, value in zip(names, args, strict=False)]


def separable(record: Record, loss: torch.Tensor, counts: Sequence[torch.Tensor], results: int, rows: int) -> bool:
    """Whether a loss is a sum over rows, or a mean over what counts of them.

    Args:
        record: of how it was made of a microbatch: of its results and, behind them, its inputs and targets.
        loss: a scalar.
        counts: what it is seen to be divided by.
        results: how many there are; those that have a gradient are looked at.
        rows: of the microbatch; of one alone nothing is said.

    Returns:
        ``True`` also where that cannot be said: of large results, of ops that cannot be called again, of infinite losses.

    Example:
        >>> x, target = torch.randn(4, 3, requires_grad=True) * 1, torch.randn(4, 3)
        >>> def is_separable(loss):
        ...     with Record([x, target]) as record:
        ...         made = loss(x, target)
        ...     return separable(record, made, [], 1, 4)
        >>> is_separable(torch.nn.functional.mse_loss)
        True
        >>> is_separable(lambda x, target: (x @ target.T).log_softmax(1).diag().mean())
        False
    """
    by_row = [each.dim() > 0 and len(each) == rows for each in record.given]
    trained = [each.requires_grad and place < results and by_row[place] for place, each in enumerate(record.given)]
    size = sum(each.numel() for each, is_trained in zip(record.given, trained, strict=True) if is_trained)
    if rows < 2 or not 0 < size <= MOST or not record.complete or not record.made(loss):
        return True
    wanted = [loss, *filter(record.made, counts)]
    together = by_row if record.by_row and not any(each.dim() and len(each) == rows for each in record.constants) else None

    def run(batch: Batch) -> torch.Tensor:
        return torch.stack([each.double().reshape(()) for each in record.replay(batch, wanted)])

    try:
        with torch.no_grad(), torch._C._DisableAutocast():
            return all(_adds_up(run, *pair) for pair in _batches(record.given, trained, together, rows))
    except (RuntimeError, TypeError, ValueError, IndexError):  # an op does not take double precision, or other sizes
        return True


def _batches(
    given: Batch, trained: Sequence[bool], together: Sequence[bool] | None, rows: int
) -> Iterable[tuple[Sequence[Batch], Sequence[Batch]]]:
    """Pairs of batches, and pairs that have the same rows: of results alone, and of all that has rows."""
    turned = [each.roll(1, 0) if turns else each for each, turns in zip(given, trained, strict=True)]
    places = torch.arange(rows)
    for first in (places < rows // 2, places % 2 == 0):
        yield (given, turned), (_mixed(first, given, turned), _mixed(first, turned, given))
    if together is not None:
        twice = places.repeat_interleave(2)
        halves = [_taken(given, together, each) for each in (twice[:rows], twice[rows:])]
        yield halves, (given, given)


def _mixed(first: torch.Tensor, one: Batch, other: Batch) -> Batch:
    """Some rows of one batch, and the rest of another; where they do not differ, as they are."""
    pairs = zip(one, other, strict=True)
    return [a if a is b else torch.where(first.to(a.device).view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs]


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
        losses = torch.stack([losses[:, 0] * counts[:, 0], counts[:, 0]], 1)
    if not losses.isfinite().all():
        return True
    gaps, spread = (losses[:2].sum(0) - losses[2:].sum(0)).abs(), losses.amax(0) - losses.amin(0)
    return bool((gaps <= 1e-5 * spread + 1e-9 * losses.abs().amax(0)).all())
