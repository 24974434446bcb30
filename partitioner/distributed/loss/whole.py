"""Whether the mean of the losses of microbatches is the loss of the batch: asked as it is meant, of two of them.

    L(a0 a1 b0 b1)  =  (L(a0 a1) + L(b0 b1)) / 2      a mean over rows
                    =   L(a0 a1) + L(b0 b1)           a sum
                    =   something else                rows are compared, chosen among, weighed by all of them

A user's function is called again for that, in double precision, and what it changes meanwhile is put back. As many things have
to count in both: results of other rows stand for those of a second microbatch, with the same targets; so do the halves of its
rows, each of them twice; and the second microbatch itself. What torch draws meanwhile is the same for all rows (`level.py`).
Nothing is said of a function that draws otherwise or fails with more rows, and of one that reads what has rows nobody knows
where.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.loss.counts import Watched, alike
from partitioner.distributed.loss.doubled import Doubled
from partitioner.distributed.loss.joined import Joined, Part
from partitioner.distributed.loss.level import Level
from partitioner.distributed.loss.mean import A_SUM, NO_MEAN, Told
from partitioner.distributed.loss.within import MOST, Tail, asked_of, tails_of
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.larger import larger
from partitioner.model.keep import objects_kept
from partitioner.model.process import process_undo
from partitioner.model.quiet import quiet

MUCH = 2**18
"""Elements of results beyond which nobody asks more than once."""

LOW, HIGH = -30.0, 17.0
"""Far from what a model gives, no infinities to an exponential function, and of different squares."""

Pair = Callable[[], tuple[Part, Part]]
Function = Callable[..., torch.Tensor]
Given = Callable[[Sequence[torch.Tensor], Mapping[str, torch.Tensor], Any], tuple[Any, ...]]


@dataclass(eq=False)
class Whole:
    """Asks of a loss, in the first steps, whether the mean over microbatches is that of the batch.

    Args:
        batches: which know the model, and the microbatches.
        function: the user's.
        given: what it is called with, of a model's results, the graph's inputs and a target.

    Attributes:
        steps: how many were looked at.
        first: the first microbatch of this step, as long as there is no second.
        waits: whether this step's loss is still to be asked of.
    """

    batches: Batches
    function: Function
    given: Given
    steps: int = 0
    first: Part | None = None
    waits: bool = False

    def begin(self) -> None:
        """Before a step; in the first one what the graph of more rows tells is found out, as long as no rank waits."""
        self.steps, self.first, self.waits = self.steps + 1, None, True
        _ = self._layouts

    def kept(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Results, as they are before a function may write to them."""
        return [each.detach().clone() if self.waits and each.numel() <= MOST else each.detach() for each in results]

    def __call__(self, part: Part) -> Told | None:
        """Ask, once there is a second microbatch or will be none.

        Args:
            part: what the function was called with last.

        Returns:
            What it is of both, if that is not the mean of theirs.
        """
        if not self.waits:
            return None
        if self.batches.count > 1 and self.first is None:
            self.first = part
            return None
        one, self.first, self.waits = self.first or part, None, False
        joined = self._layouts[0]
        losses = (self._own.get(joined.names[place]) for place in part.reached)
        if any(told is not None and not (told.is_mean or told.is_sum) for told in losses):
            return NO_MEAN
        most = MOST if self.steps == 1 else MUCH
        if joined.tells_numbers or sum(part.results[place].numel() for place in part.reached) > most:
            return None
        found = [self._in_layout(layout, one, part) for layout in self._layouts]
        return None if None in found else found[0]

    def _in_layout(self, layout: Joined, one: Part, other: Part) -> Told | None:
        """What the function gives of what may stand for two microbatches, if that is no mean."""
        pairs: list[Pair] = [lambda: (one, layout.turned(one)), lambda: layout.halves(one), lambda: (one, other)]
        asked = (self._told(layout, pair) for pair in (pairs[:2] if other is one else pairs))
        return next((told for told in asked if told is not None and not told.is_mean), None)

    @cached_property
    def _larger(self) -> Example | None:
        """The model's graph of twice the rows."""
        return larger(self.batches.model, self.batches.example)

    @cached_property
    def _own(self) -> dict[str, Told]:
        """What is told of the model's own losses."""
        tails = [tail for tail in tails_of(self.batches.example) if not tail.is_mean]
        told = {tail.loss.name: self._told_of(tail) for tail in tails}
        return {name: each for name, each in told.items() if each is not None}

    def _told_of(self, tail: Tail) -> Told | None:
        if tail.is_sum:
            return A_SUM
        return asked_of(tail, self.batches, self._larger) if self._larger is not None else None

    @cached_property
    def _layouts(self) -> list[Joined]:
        """The ways in which microbatches' results may have to be put together, one of which is right."""
        sums = frozenset(name for name, told in self._own.items() if told.is_sum)
        joined = Joined(self.batches, lambda: self._larger, sums)
        return [joined, replace(joined, inner=True)] if joined.several else [joined]

    def _told(self, joined: Joined, pair: Pair) -> Told | None:
        """What the function gives of two microbatches, and of both; ``None`` where nothing can be said."""
        watched, undo = Watched(2), process_undo()
        ask = partial(self._value, watched)
        try:
            with quiet(), torch.enable_grad(), torch._C._DisableAutocast():
                one, other = pair()
                first, second = ask(*joined.of(one)), ask(*joined.of(other))
                if not alike(watched.found):  # what differs in these is refused as that
                    return None
                both = ((LOW, LOW), (HIGH, LOW), (LOW, HIGH))
                whole, refilled, unknown = (ask(*joined.both(one, other, *each)) for each in both)
                again = ask(*joined.of(one))  # of a function that draws in Python, or asks for the time, it is another
        except Exception:  # the user's own, of a call that is none of the user's; or nothing can be said
            return None
        finally:
            undo()
        if not (math.isfinite(first + second) and _same(first, again)) or math.isnan(whole):
            return None
        if not _same(whole, refilled):
            return NO_MEAN
        return Told(first, second, whole) if _same(whole, unknown) else None

    def _value(self, watched: Watched, *call: Any) -> float:
        """What the function gives; ``watched`` is told of how many things that is the mean."""
        given = self.given(*call)
        watched.found.append([])
        with objects_kept([self.function]), Level(), Doubled(), watched:  # type: ignore[no-untyped-call]
            return self.function(*given).item()


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
