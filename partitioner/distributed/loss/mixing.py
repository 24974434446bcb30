"""Ops of a model that take rows of a batch together: of a microbatch's they do not make what they make of the batch's.

    x.mean(0)     8, 64  ->  64
    x @ x.T       8, 64  ->  8, 8

Values tell (`meeting.py`). Where there are none, or too much is to be computed, a graph of twice the rows may show it by its
sizes: behind such an op it has no more numbers, or more in two dimensions. What is made of indices alone, as how many tokens an
expert has, is no such number. Batch norm is none of these ops: what it does of each microbatch is documented. The model's own
losses, and pairs that it returns, are judged by the loss (`whole.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial

import torch
from torch import nn

from partitioner.distributed.loss.apart import Untold
from partitioner.distributed.loss.meeting import meeting
from partitioner.distributed.loss.within import tails_of
from partitioner.distributed.ranks import here
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.larger import larger
from partitioner.distributed.traced.rows import growing
from partitioner.ir.graph import Graph, Op
from partitioner.model.node import made_of


def warn_of_mixing(model: nn.Module, example: Example, parts: int) -> None:
    """Warn, on the first rank, of a model of which microbatches, or copies, make something else than one process of the batch.

    Args:
        model: what was traced.
        example: a call with a microbatch. It is traced once more, with twice the rows, and both run where that is soon done.
        parts: microbatches of all copies.
    """
    found = mixing(model, example) if parts > 1 and here() == 0 else None
    if found is not None:
        where = found.where or found.name
        warnings.warn(
            f"{type(model).__name__} takes rows of a batch together ({where}), and each of {parts} microbatches and copies has "
            "rows of its own: what they compute is not what one process computes of the whole batch. With microbatches: 1, "
            "and without a data axis, it is",
            stacklevel=2,
        )


def mixing(model: nn.Module, example: Example) -> Op | None:
    """The first op in which rows meet, if there is one.

    Example:
        >>> import torch
        >>> from partitioner.distributed.traced.example import example_in
        >>> class Centred(nn.Module):
        ...     def forward(self, x):
        ...         return x - x.mean(0)
        >>> x = torch.randn(8, 3, requires_grad=True)
        >>> mixing(Centred(), example_in(Centred(), x, None, 1)).name
        'mean'
    """
    graph, twice = example.traced.graph, cache(partial(larger, model, example))
    try:
        found = meeting(model, example, twice)
    except Untold as untold:
        apart = made_of(graph.nodes[name] for name in untold.apart)
        return next((op for op in _by_sizes(example, twice) if graph.nodes[op.name] not in apart), None)
    behind = set[torch.fx.Node]() if found is None else made_of([graph.nodes[found.name]])
    return next((op for op in _by_sizes(example, twice) if graph.nodes[op.name] in behind), found) if behind else None


def _by_sizes(example: Example, larger: Callable[[], Example | None]) -> Iterator[Op]:
    """The ops whose sizes say that rows meet in them."""
    own = {node for tail in tails_of(example) for node in tail.nodes}
    graph, numbers, kept = example.traced.graph, _numbers(example), _kept(example.traced.graph) - own
    for op in graph.ops:
        if graph.nodes[op.name] in kept and _may_mix(example, op, numbers):
            more = larger()
            if more is not None and _mixes(example, more, op):
                yield op


def _kept(graph: Graph) -> set[torch.fx.Node]:
    """What a model gives, or writes to something else, is made of; not what it only checks."""
    writes = [op.name for op in graph.ops if any(each.write and each.resource != op.name for each in op.accesses)]
    return made_of(graph.nodes[name] for name in (*graph.outputs, *writes))


def _numbers(example: Example) -> set[str]:
    """The values that are made of the batch's numbers or of weights, and not of indices, lengths or masks alone."""
    found = {name for name in example.places if _made(example, name)}
    for op in example.traced.graph.ops:
        if (op.state or not found.isdisjoint(op.inputs)) and _made(example, op.name) and not _asks_sizes(op):
            found.add(op.name)
    return found


def _asks_sizes(op: Op) -> bool:
    """Whether an op asks a tensor for its size and dtype alone, by torch's names for such: `new_zeros`, `rand_like`."""
    return op.target.startswith("new_") or op.target.endswith("_like")


def _may_mix(example: Example, op: Op, numbers: Collection[str]) -> bool:
    """Whether an op may take rows together, as far as its sizes tell: what it makes of them has none, or has them twice."""
    rows, like = example.rows, example.traced.graph.nodes[op.name].meta.get("example_value")
    if any(isinstance(size, torch.SymInt) for size in getattr(like, "shape", ())):  # as many as a mask has, of any rows
        return False
    made, given = _made(example, op.name), [shape for name in op.inputs if name in numbers for shape in _made(example, name)]
    if rows < 2 or op.name not in numbers or not any(_has(rows, shape) for shape in given):
        return False
    often = max(shape.count(rows) for shape in given)
    return not any(_has(rows, shape) for shape in made) or any(shape.count(rows) > often for shape in made)


def _mixes(example: Example, more: Example, op: Op) -> bool:
    """Whether it does, in a graph of twice the rows."""
    if op.name not in more.traced.graph.by_name:
        return False
    made, given = _growing(example, more, op.name), [_growing(example, more, name) for name in op.inputs]
    returned = any(_growing(example, more, name) > 1 for name in example.traced.graph.outputs)
    return any(given) and (made == 0 or (made > max(given) and not returned))


def _growing(example: Example, more: Example, name: str) -> int:
    """In how many dimensions a value has more, of twice the rows."""
    pairs = [*zip(_made(example, name), _made(more, name), strict=True)]
    return max((len(growing(*pair)) for pair in pairs), default=0)


def _has(rows: int, shape: tuple[int, ...]) -> bool:
    return any(size and size % rows == 0 for size in shape)


def _made(example: Example, name: str) -> list[tuple[int, ...]]:
    """The shapes of an op's results, or of an input, that are floating-point numbers."""
    graph = example.traced.graph
    op, meta = graph.by_name.get(name), graph.metas.get(name)
    metas = op.outputs if op is not None else () if meta is None else (meta,)
    return [tuple(each.shape) for each in metas if each.dtype.is_floating_point]
