"""Whether rows of a batch meet in a model, asked by values: of sizes that do not show it, as of sort, cumsum, roll, softmax(0).

    f(a0 a1 b0 b1)  =  f(a0 a1), f(b0 b1)      each row by itself
                    =  something else          rows are sorted, summed up along the batch, compared, taken from each other

What is made by a detour, as rows that are put in order for an expert and put back, is the same in the end; so what the model
gives is compared, and where that differs, the first op whose values do is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import nn

from partitioner.distributed.loss.apart import Untold, apart_and_together, orders, too_much
from partitioner.distributed.loss.within import Tail, of_batch, tails_of
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.rows import growing
from partitioner.ir.graph import Op


def meeting(model: nn.Module, example: Example, larger: Callable[[], Example | None]) -> Op | None:
    """The first op behind which rows are no longer by themselves, if what the model gives shows that.

    Args:
        model: what was traced; left as it is.
        example: a call with a microbatch.
        larger: gives one with twice the rows.

    Raises:
        Untold: nothing can be said.
    """
    graph = example.traced.graph
    if too_much(model, example) or (more := larger()) is None:
        raise Untold
    given = [*_given(example, more)]
    shown = [pair for pair in given if _along(example, more, *pair) is not None]
    differs = _differing(model, example, more, shown) if shown else None
    if differs is None:
        if len(shown) < len(given):
            raise Untold([one for one, _ in shown])
        return None
    alike = [(op.name, op.name) for op in graph.ops if op.name in more.traced.graph.by_name]
    every = [pair for pair in alike if _along(example, more, *pair) is not None]
    return graph.by_name.get(_differing(model, example, more, every) or differs)


def _given(example: Example, more: Example) -> Iterator[tuple[str, str]]:
    """Numbers of the batch that a model gives, in both graphs; of a loss that it makes, what comes of its last weights."""
    tails, behind = _tails(example), _tails(more)
    graph = example.traced.graph
    for one, both in zip(graph.outputs, more.traced.graph.outputs, strict=True):
        pairs = [(one, both)]
        if one in tails and both in behind:
            drawn = zip(tails[one].drawn, behind[both].drawn, strict=False)
            pairs = [(node.name, other.name) for node, other in drawn]
        for pair in pairs:
            meta = graph.metas.get(pair[0])
            if (meta is None or meta.dtype.is_floating_point) and of_batch(example, graph.nodes[pair[0]]):
                yield pair


def _tails(example: Example) -> dict[str, Tail]:
    return {tail.loss.name: tail for tail in tails_of(example)}


def _along(example: Example, more: Example, one: str, both: str) -> int | None:
    """In which dimension a value has rows, if in one, and is no tensor of whole numbers."""
    meta, larger = example.traced.graph.metas.get(one), more.traced.graph.metas.get(both)
    if meta is None or larger is None or len(meta.shape) != len(larger.shape) or not meta.dtype.is_floating_point:
        return None
    if not all(isinstance(size, int) for size in (*meta.shape, *larger.shape)):
        return None
    longer = growing(meta.shape, larger.shape)
    if len(longer) != 1 or larger.shape[longer[0]] != 2 * meta.shape[longer[0]] or meta.shape[longer[0]] % example.rows:
        return None
    return longer[0]


def _differing(model: nn.Module, example: Example, more: Example, pairs: Sequence[tuple[str, str]]) -> str | None:
    """The first of some values that both microbatches have by themselves otherwise than together.

    Raises:
        Untold: the graph cannot be run so.
    """
    microbatches, whole = apart_and_together(model, example, more, pairs)
    for one, both in pairs:
        along = _along(example, more, one, both)
        assert along is not None
        if not orders(whole[both], [values[one] for values in microbatches], along, example.rows):
            return one
    return None
