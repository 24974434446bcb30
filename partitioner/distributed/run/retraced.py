"""A loss that a model computes itself, traced again of twice the rows: which of the numbers in a graph are those of its rows.

logits, targets of 4 rows    cross_entropy(...).sum() / 4
                   8 rows    .../ 8: of any logits, and these twice over, as much; a sum would be twice as much
"""

from __future__ import annotations

import torch

from partitioner.distributed.run.batches import Batches
from partitioner.distributed.run.sums import multiplies
from partitioner.distributed.run.twice import over, value_of
from partitioner.distributed.run.within import Again, Tail, again, of_batch, tails_of
from partitioner.distributed.traced.example import Example


def retraced(batches: Batches, other: Example, tail: Tail, own: Again, parts: int) -> tuple[float, float] | None:
    """What a model's own loss is of some numbers, and of these twice over. Only ops behind its weights run.

    Args:
        batches: which know the microbatches.
        other: the model's graph of twice the rows.
        tail: of the loss.
        own: how it came of some numbers.
        parts: microbatches of all copies; by so much a sum is multiplied that is to be that of the batch.

    Returns:
        ``None`` where nothing can be said.
    """
    try:
        found = _of_twice(batches, other, tail, own)
        if found is None or not found.record.complete or own.record.drawn or multiplies(found.record, found.loss, parts):
            return None
        return value_of(own.record, own.loss), value_of(found.record, found.loss)
    except Exception:  # of other ops, or rows, than those that there were
        return None


def _of_twice(batches: Batches, other: Example, tail: Tail, own: Again) -> Again | None:
    example, inputs = batches.example, batches(0)
    if not other.places.keys() <= {*other.traced.graph.arguments}:
        return None
    place = example.traced.graph.outputs.index(tail.loss.name)
    (behind,) = [each for each in tails_of(other) if each.loss.name == other.traced.graph.outputs[place]]
    drawn = zip(tail.drawn, behind.drawn, strict=True)
    known = {more.name: _twice(example, node, own.values[node.name], more) for node, more in drawn}
    known |= {node.name: own.values[node.name] for node in behind.given if node.name not in inputs}
    more = {name: over(each, 2 if example.by_rows[example.places[name]] else 1) for name, each in inputs.items()}
    return again(other, behind, more, batches.device, known)


def _twice(example: Example, node: torch.fx.Node, value: torch.Tensor, more: torch.fx.Node) -> torch.Tensor:
    """What stands for a node, with each row twice; its rows may follow each other in any dimension.

    Raises:
        ValueError: there is none, though it is of the batch, or rows are taken together with something else.
    """
    pairs = enumerate(zip(value.shape, more.meta["example_value"].shape, strict=True))
    along = [(place, *sizes) for place, sizes in pairs if sizes[0] != sizes[1]]
    if not along and not of_batch(example, node):
        return value
    ((place, *sizes),) = along
    if sizes != [example.rows, 2 * example.rows]:
        raise ValueError("rows are not a dimension of their own")
    return torch.cat([value.detach()] * 2, place)
