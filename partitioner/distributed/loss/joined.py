"""Two microbatches as one: what a loss function would be called with.

results   4, 6   and 4, 6     ->   8, 6      behind each other, in the dimension in which they have rows
          12, 6  and 12, 6    ->   24, 6     three of each row, behind each other or among those of the other rows
          4, 4   and 4, 4     ->   8, 8      numbers of pairs of rows: any stand for those of pairs from both
          a loss              ->   a loss    their mean or, of sums, their sum
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from partitioner.distributed.batch.batches import Batches, is_by_row
from partitioner.distributed.loss.doubled import doubled
from partitioner.distributed.loss.within import of_batch
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.rows import growing

LARGE = 2**20
"""Elements of a result that no loss is made of, beyond which only its shape is told."""

Call = tuple[list[torch.Tensor], Mapping[str, torch.Tensor], Any]
"""A model's results, the graph's inputs and a target."""


@dataclass(frozen=True, eq=False)
class Part:
    """What a user's function was called with.

    Args:
        results: the model's, as they were before the call.
        inputs: of the graph.
        target: if the function takes one.
        reached: places of the results that the loss is made of.
    """

    results: Sequence[torch.Tensor]
    inputs: Mapping[str, torch.Tensor]
    target: Any
    reached: Collection[int]


class Rows(NamedTuple):
    """Where a result has rows.

    Args:
        dimensions: none, one, or two if it has something of each pair of rows.
        several: whether rows stand in that dimension together with something else, as a batch of sequences laid out flat.
    """

    dimensions: tuple[int, ...]
    several: bool = False


@dataclass(frozen=True, eq=False)
class Joined:
    """Joins microbatches.

    Args:
        batches: which know the model, and the microbatches.
        larger: gives the model's graph of twice the rows, if it has one.
        sums: the model's results that are sums over rows.
        inner: whether, where rows stand together with something else, they are the inner dimension, and not the outer one.
    """

    batches: Batches
    larger: Callable[[], Example | None]
    sums: Collection[str]
    inner: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the results, in the graph."""
        return tuple(self.batches.example.traced.graph.outputs)

    @cached_property
    def tells_numbers(self) -> bool:
        """Whether the model gives numbers of Python's, one of which may be that of the rows."""
        return any(value for name, value in self.batches.example.leaves if not name and type(value) in (int, float))

    @cached_property
    def several(self) -> bool:
        """Whether there are two ways in which rows may stand; the model may be traced to find that out."""
        return any(rows is not None and rows.several for rows in self._rows)

    def turned(self, part: Part) -> Part:
        """A microbatch whose results are those of other rows."""
        return replace(part, results=[self._turned(place, each) for place, each in enumerate(part.results)])

    def halves(self, part: Part) -> tuple[Part, Part]:
        """Of a microbatch of four rows what has the first two twice, and what has the last two."""
        rows = self.batches.example.rows
        first, second = torch.arange(rows).repeat_interleave(2).chunk(2)
        return self._taken(part, first), self._taken(part, second)

    def of(self, part: Part) -> Call:
        """What the function is called with; all of it may be written to."""
        inputs = {name: _copied(each) for name, each in part.inputs.items()}
        return [self._light(part, place) for place in range(len(part.results))], inputs, tree_map(_copied, part.target)

    def both(self, one: Part, other: Part, pairs: float, unknown: float) -> Call:
        """What it would be called with.

        Args:
            one, other: the microbatches.
            pairs: stands for what is of a row of each.
            unknown: stands for results of which nobody knows where their rows are.
        """
        (results, inputs, target), (others, more, next_target) = self.of(one), self.of(other)
        return (
            [self._both(place, *pair, pairs, unknown) for place, pair in enumerate(zip(results, others, strict=True))],
            {name: torch.cat([each, more[name]]) if self._has_rows(name) else each for name, each in inputs.items()},
            self._in_target(_joined, target, next_target),
        )

    def _taken(self, part: Part, rows: torch.Tensor) -> Part:
        """Some rows of a microbatch."""

        def taken(dimensions: Sequence[int], each: torch.Tensor) -> torch.Tensor:
            for along in dimensions:
                each = each.index_select(along, rows.to(each.device))
            return each

        results = [self._by_rows(place, taken, each) for place, each in enumerate(part.results)]
        inputs = {name: _chosen(each, rows) if self._has_rows(name) else each for name, each in part.inputs.items()}
        target = self._in_target(lambda leaf: _chosen(leaf, rows), part.target)
        return replace(part, results=results, inputs=inputs, target=target)

    def _has_rows(self, name: str) -> bool:
        example = self.batches.example
        return example.by_rows[example.places[name]]

    def _in_target(self, function: Callable[..., Any], *targets: Any) -> Any:
        """What a function makes of all in targets that has rows; whatever has none, as it is."""
        has_rows = partial(is_by_row, rows=self.batches.example.rows)
        return tree_map(lambda *leaves: function(*leaves) if has_rows(leaves[0]) else leaves[0], *targets, is_leaf=has_rows)

    def _by_rows(self, place: int, function: Callable[..., torch.Tensor], *results: torch.Tensor) -> torch.Tensor:
        """What a function makes of results, told the dimensions in which they have rows, and nothing else."""
        dimensions, several = self._rows[place] or Rows(())
        if not several:
            return function(dimensions, *results)
        (at,), sizes = dimensions, (-1, self.batches.example.rows) if self.inner else (self.batches.example.rows, -1)
        return function((at + self.inner,), *(torch.unflatten(each, at, sizes) for each in results)).flatten(at, at + 1)

    @cached_property
    def _rows(self) -> list[Rows | None]:
        """Where each result has rows; ``None`` where it is made of the batch, and nobody knows how."""
        graph, example = self.batches.example.traced.graph, self.batches.example
        apart = [not of_batch(example, graph.nodes[name]) for name in graph.outputs]
        return [Rows(()) if alone else self._rows_of(place) for place, alone in enumerate(apart)]

    def _rows_of(self, place: int) -> Rows | None:
        rows, shape = self.batches.example.rows, _shape(self.batches.example, place)
        if shape[:1] == (rows,) and shape.count(rows) == 1:
            return Rows((0,))
        larger = self.larger() if shape else None
        if larger is None:
            return None
        more = _shape(larger, place)
        longer = growing(shape, more)
        several = any(shape[each] != rows for each in longer)
        twice = all(more[each] == 2 * shape[each] for each in longer)
        return Rows(longer, several) if twice and len(longer) in ((1,) if several else (1, 2)) else None

    def _is_loss(self, place: int) -> bool:
        example, name = self.batches.example, self.names[place]
        return self._rows[place] is None and name in example.differentiable and _shape(example, place) == ()

    def _turned(self, place: int, result: torch.Tensor) -> torch.Tensor:
        """Other rows, of another mean, whose numbers are still such that a logarithm takes them."""
        if self._rows[place] == Rows(()):
            return result
        turned = self._by_rows(place, lambda along, each: each.roll([1] * len(along), along) if along else each, result)
        return turned * 0.9 if turned.is_floating_point() else turned

    def _light(self, part: Part, place: int) -> torch.Tensor:
        """A copy of a result, with a gradient if that has one; of a large one that no loss is made of, its shape alone."""
        result = part.results[place]
        if place not in part.reached and result.numel() > LARGE and result.is_floating_point():
            return torch.full((), math.nan, dtype=torch.float64, device=result.device).expand(result.shape)
        copied: torch.Tensor = _copied(result)
        learns = self.names[place] in self.batches.example.differentiable
        return copied.requires_grad_().clone() if learns else copied  # no leaf, which nobody may write to

    def _both(self, place: int, one: torch.Tensor, other: torch.Tensor, pairs: float, unknown: float) -> torch.Tensor:
        if self._is_loss(place):
            return one + other if self.names[place] in self.sums else (one + other) / 2
        if self._rows[place] is None:
            return torch.full_like(one, unknown)

        def both(dimensions: Sequence[int], one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            if len(dimensions) < 2:
                return torch.cat([one, other], *dimensions) if dimensions else one
            blocks = [[one, torch.full_like(one, pairs)], [torch.full_like(one, pairs), other]]
            return torch.cat([torch.cat(row, dimensions[1]) for row in blocks], dimensions[0])

        return self._by_rows(place, both, one, other)


def _shape(example: Example, place: int) -> tuple[int, ...]:
    """Of a result."""
    graph = example.traced.graph
    meta = graph.metas.get(graph.outputs[place])
    return () if meta is None else tuple(meta.shape)


def _copied(leaf: Any) -> Any:
    return doubled(leaf.detach().clone()) if isinstance(leaf, torch.Tensor) else leaf


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, torch.Tensor):
        return torch.cat([one, other])
    return np.concatenate([one, other]) if isinstance(one, np.ndarray) else one + other


def _chosen(value: Any, rows: torch.Tensor) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(value[row] for row in rows.tolist())
    return value[rows.to(value.device) if isinstance(value, torch.Tensor) else rows.numpy()]
