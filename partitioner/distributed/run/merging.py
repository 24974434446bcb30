"""How results of microbatches are put together, so that they are what the model returns of the batch.

    behind each other   y          (4, 16), (4, 16)  ->  (8, 16)
    in blocks           y.mT.flatten(0, 1), of a row for each step and then for each of the batch's
    any of them         what has nothing of rows

Sizes say in which dimension rows lie; in what order, where there are several numbers for each, only values do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from torch import nn
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _CustomReducer

from partitioner.distributed.loss.apart import Untold, apart_and_together, orders, put_together, too_much
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.larger import larger, whole_results
from partitioner.distributed.traced.rows import growing
from partitioner.errors import InputError
from partitioner.ir.graph import TensorMeta


def merging_of(model: nn.Module, example: Example, count: int) -> tuple[Any, ...]:
    """How results of microbatches are put together, as torch's schedules take it.

    Args:
        model: what was traced.
        example: a call with a microbatch.
        count: how many there are.

    Raises:
        InputError: there are several, and together they are not what the model returns of a batch; names the value.
    """
    found = _placed(model, example, count) if count > 1 else {}
    return tuple(_merge(*found.get(name, (None, 1))) for name in example.traced.graph.outputs)


def _merge(along: int | None, blocks: int) -> Any:
    chunks, reducer = cast("Any", TensorChunkSpec), cast("Any", _CustomReducer)
    if along is None:
        return reducer(None, lambda _, last: last)
    if blocks == 1:
        return chunks(along)
    return reducer(None, lambda before, each: each if before is None else put_together([before, each], along, blocks))


def _placed(model: nn.Module, example: Example, count: int) -> dict[str, tuple[int, int]]:
    """The dimension of each result in which rows follow each other, and in how many blocks; as many may be anything else.

    Raises:
        InputError: as `merging_of`.
    """
    found = dict(_results(example, whole_results(model, example, count), count))
    shapes = {name: cast("TensorMeta", example.traced.graph.metas[name]).shape for name in found}
    along = {name: _along(shapes[name], value.shape, example.rows, count) for name, value in found.items()}
    several = {name: place for name, place in along.items() if place is not None and shapes[name][place] != example.rows}
    blocks = dict.fromkeys(along.keys() - several.keys(), 1) | _blocks(model, example, several)
    for name, value in found.items():
        if along[name] is None or name not in blocks:
            rows = f"{example.rows} of a batch's {example.rows * count} rows"
            raise InputError(
                f"the model returns {name}, of shape {shapes[name]} for {rows} and {tuple(value.shape)} for all, which is not "
                "one microbatch behind the other; return what is by rows, or ask for one microbatch"
            )
    return {name: (place, blocks[name]) for name, place in along.items() if place is not None}


def _results(example: Example, whole: Sequence[Any], count: int) -> Iterator[tuple[str, Any]]:
    """The values of the graph among what a model returns, and what they are of the batch.

    Raises:
        InputError: something else that it returns is another one for the batch.
    """
    for (name, value), wanted in zip(example.leaves, whole, strict=True):
        if name in example.traced.graph.outputs:
            yield name, wanted
        elif not name and value != wanted:
            raise InputError(
                f"the model returns {value!r} for {example.rows} of a batch's {example.rows * count} rows and {wanted!r} for "
                "all; leave it out, or ask for one microbatch"
            )


def _along(shape: Sequence[int], whole: Sequence[int], rows: int, count: int) -> int | None:
    """The dimension in which a result has so many times the numbers, if it has in just one, and so many for each row there.

    Example:
        >>> _along((4, 6, 2), (4, 18, 2), rows=2, count=3)
        1
    """
    longer = growing(shape, whole)
    if len(longer) != 1 or shape[longer[0]] % rows or whole[longer[0]] != shape[longer[0]] * count:
        return None
    return longer[0]


def _blocks(model: nn.Module, example: Example, results: Mapping[str, int]) -> dict[str, int]:
    """In how many blocks each of some results has the rows of a batch, as their values say; of some they do not.

    Args:
        model: what was traced; left as it is.
        example: a call with a microbatch.
        results: by name, the dimension in which rows lie.
    """
    more = larger(model, example) if results and not too_much(model, example) else None
    if more is None:
        return {}
    graphs = (example.traced.graph, more.traced.graph)
    behind = dict(zip(*(graph.outputs for graph in graphs), strict=True))
    try:
        apart, together = apart_and_together(model, example, more, [(name, behind[name]) for name in results])
    except Untold:
        return {}
    found = {
        name: orders(together[behind[name]], [values[name] for values in apart], along, example.rows)
        for name, along in results.items()
    }
    return {name: several[0] for name, several in found.items() if len(several) == 1}
