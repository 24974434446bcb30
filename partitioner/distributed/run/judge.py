"""Whether the loss of a microbatch is a mean over its rows, as far as can be said: as `loss_fn` makes it, and as a model does.

reads rows of its own, writes, is large     nothing is said
compares rows, chooses among them           separable.py: noted, and refused on all ranks once the step is over
reads what a model makes of pairs of rows   pairs.py: likewise
a sum                                       sums.py: refused
a number may be that of the rows            twice.py, retraced.py: the function is asked of each row twice, in the first step
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import tree_map

from partitioner.distributed.run.batches import Batches
from partitioner.distributed.run.counts import Watched, is_sum
from partitioner.distributed.run.pairs import dimensions_of_pairs, reads_pairs
from partitioner.distributed.run.record import Record, has_rows
from partitioner.distributed.run.retraced import retraced
from partitioner.distributed.run.separable import separable
from partitioner.distributed.run.sums import differ, is_mean, may_divide
from partitioner.distributed.run.twice import of_twice, over
from partitioner.distributed.run.within import Again, Tail, again, of_batch, tails_of
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.larger import larger
from partitioner.errors import InputError

Given = Callable[[Sequence[torch.Tensor], Mapping[str, torch.Tensor], Any], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Made:
    """A loss, and how a user's function has made it.

    Args:
        function: the user's.
        given: what it is called with, of a model's results, the graph's inputs and a target.
        number: of the microbatch.
        results: the model's.
        loss: what the function gave.
        record: its ops.
        reached: places of the results that the loss is made of.
        counted: whether the batch tells what the model's own losses are divided by.
    """

    function: Callable[..., torch.Tensor]
    given: Given
    number: int
    results: Sequence[torch.Tensor]
    loss: torch.Tensor
    record: Record
    reached: Collection[int]
    counted: bool


@dataclass(eq=False)
class Judge:
    """Judges losses of one model.

    Args:
        batches: which know the model, and the microbatches.

    Attributes:
        sums: the model's own losses that are seen to be no means of rows, where their ops do not tell.
        crossed: results that have rows in another dimension than the first, of which there are as many.
        paired: results that have something of each pair of rows, and in which dimensions.
    """

    batches: Batches
    sums: set[str] = field(default_factory=set)
    crossed: set[int] = field(default_factory=set)
    paired: dict[int, tuple[int, int]] = field(default_factory=dict)

    def begin(self, parts: int) -> None:
        """Before the first step: see what the graph of twice the rows tells, where it is not told without."""
        example, rows, inputs = self.batches.example, self.batches.example.rows, self.batches(0)
        for tail in self._tails:
            own = again(example, tail, inputs, self.batches.device)
            if own is not None and is_mean(own.record, own.loss, own.by_row, rows, parts) is None and self._larger:
                found = retraced(self.batches, self._larger, tail, own, parts)
                self.sums |= {tail.loss.name} if found is not None and differ(*found) else set()
        square = {place for place, shape in enumerate(_shapes(example)) if shape.count(rows) > 1} - self._apart
        if square and self._larger:
            both = enumerate(zip(_shapes(example), _shapes(self._larger), strict=False))
            shapes = {place: pair for place, pair in both if place in square}
            pairs = {place: dimensions_of_pairs(*shapes[place], rows) for place in shapes}
            self.paired = {place: dimensions for place, dimensions in pairs.items() if dimensions is not None}
            self.crossed = {place for place, (shape, more) in shapes.items() if shape[:1] == more[:1] == (rows,)}

    @cached_property
    def _larger(self) -> Example | None:
        try:
            return larger(self.batches.model, self.batches.example, 2)
        except Exception:  # the model's own, which may take no other number of rows
            return None

    @cached_property
    def _tails(self) -> list[Tail]:
        return tails_of(self.batches.example)

    @cached_property
    def _apart(self) -> set[int]:
        """Results that no row of a batch goes into: weights of tasks, which may be as many as a microbatch has rows."""
        graph, example = self.batches.example.traced.graph, self.batches.example
        return {place for place, name in enumerate(graph.outputs) if not of_batch(example, graph.nodes[name])}

    def __call__(self, made: Made, watched: Watched, *, ask: bool) -> None:
        """Judge a loss, and those of which a model makes it.

        Args:
            made: the loss.
            watched: what it was seen to be divided by; is told whether the loss is separable.
            ask: whether the function may be called again.

        Raises:
            InputError: it is a sum, or of twice the rows another loss.
        """
        record, rows, parts = made.record, self.batches.example.rows, watched.parts
        own, by_row = self._own(made), self._by_row(made)
        trained = [has and each.requires_grad for has, each in zip(by_row, made.results, strict=False)]
        trained += [False] * (len(by_row) - len(trained))
        counts = None if made.counted else ()  # what differs in these is refused as that
        watched.separable = separable(record, made.loss, watched.found[0], trained, by_row, rows) and all(
            separable(each.record, each.loss, counts, each.trained, each.by_row, rows) for each in own
        )
        pairs = ((place, self.paired[place]) for place in self.paired.keys() & {*made.reached})
        watched.separable &= not any(reads_pairs(record, made.loss, *pair) for pair in pairs)
        means = [is_mean(each.record, each.loss, each.by_row, rows, parts) for each in own]
        means += [not is_sum(tail.loss) and tail.loss.name not in self.sums for tail in self._reached(made)]
        mean = is_mean(record, made.loss, by_row, rows, parts)
        asked = ask and mean is None and watched.separable and self._can_be_asked(made, by_row)
        twice = self._of_twice(made, by_row, parts) if asked else None
        summed = mean is False or (False in means and not may_divide(record, made.loss, rows, parts))
        twice = twice if twice is not None and differ(*twice) else None
        _refuse_no_mean(made.loss, watched, twice, by_hand=summed or twice is not None)

    def _reached(self, made: Made) -> list[Tail]:
        losses = {self.batches.example.traced.graph.outputs[place] for place in made.reached}
        return [tail for tail in self._tails if tail.loss.name in losses]

    def _own(self, made: Made) -> list[Again]:
        """The model's losses of which this one is made, as far as they can be computed again."""
        inputs = self.batches(made.number)
        asked = (again(self.batches.example, tail, inputs, self.batches.device) for tail in self._reached(made))
        return [each for each in asked if each is not None]

    def _by_row(self, made: Made) -> list[bool]:
        """What of all that a loss may read has a row for each of the microbatch's: results, inputs, and targets."""
        rows, along = self.batches.example.rows, self.batches.example.by_rows
        other = self._apart | self.crossed | self.paired.keys()
        results = [has_rows(each, rows) and place not in other for place, each in enumerate(made.results)]
        return [*results, *along, *(has_rows(each, rows) for each in made.record.given[len(results) + len(along) :])]

    def _can_be_asked(self, made: Made, by_row: Sequence[bool]) -> bool:
        """Whether more rows can be made of a microbatch: all that the loss reads of them has rows, and no number of the model's
        output may stand for how many there are."""
        fixed = [each for place, each in enumerate(made.results) if not by_row[place] and place not in self._apart]
        numbers = (value for name, value in self.batches.example.leaves if not name and type(value) in (int, float))
        read = any(each is made.loss or made.record.reads(each) for each in fixed)
        return not (made.record.drawn or read or any(numbers))

    def _of_twice(self, made: Made, by_row: Sequence[bool], parts: int) -> tuple[float, float] | None:
        example, inputs, target = self.batches.example, self.batches(made.number), self.batches.targets[made.number]

        def given(times: int) -> tuple[Any, ...]:
            often = [times if has else 1 for has in by_row]
            results = [over(each, often[place]) for place, each in enumerate(made.results)]
            more = {name: over(each, often[len(results) + example.places[name]]) for name, each in inputs.items()}
            return made.given(results, more, tree_map(lambda leaf: over(leaf, times, example.rows), target))

        return of_twice(made.function, given, made.record, made.loss, parts)


def _shapes(example: Example) -> list[tuple[int, ...]]:
    metas = [example.traced.graph.metas.get(name) for name in example.traced.graph.outputs]
    return [() if each is None else tuple(each.shape) for each in metas]


def _refuse_no_mean(loss: torch.Tensor, watched: Watched, twice: tuple[float, float] | None, *, by_hand: bool) -> None:
    """Refuse as the loss of a microbatch a sum, or another one of which microbatches have no mean.

    Args:
        loss: what the user's function gave.
        watched: which losses are sums that a function of losses has made.
        twice: what it is, and of each row twice, if it was asked.
        by_hand: whether it is seen to be no mean, and was not just asked for a sum.

    Raises:
        InputError: says what to give instead.
    """
    known = any(loss is each for each in watched.sums)
    if not known and not (by_hand and watched.separable):
        return
    averaged = f"and the losses of {watched.parts} microbatches and copies are averaged"
    whole = f"for the sum over the whole batch, {watched.parts} times that sum"
    if known or twice is None or not differ(2 * twice[0], twice[1]):
        how = 'reduction="sum"' if known else "of rows"
        raise InputError(f"the loss is a sum, {how}, {averaged}: give the mean, as .sum() / len(output), or, {whole}")
    raise InputError(
        f"the loss is no mean over rows: of each row twice it is {twice[1]:g} and not {twice[0]:g}, {averaged}. Give the mean, "
        f"over all rows and however many there are, as .sum() / len(output), or, {whole}; if each microbatch is to be looked "
        "at by itself, say so: count_fn=lambda *_, **__: 1"
    )
