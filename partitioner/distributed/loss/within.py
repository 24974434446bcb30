"""A loss that the model itself computes, of which the same is asked: of the ops behind the last weights.

    forward    images, texts -> towers -> projections  |  a / a.norm()   a @ b.T   cross_entropy   -> loss
                                                       ^ any numbers, with a row for each of the batch's

What these ops make of two microbatches, and of both as one in the graph of twice the rows, does not need the values that the
weights make, which may lie on other ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from partitioner.distributed.batch.batches import Batches
from partitioner.distributed.loss.counts import MEANS, fixed_by, held_in, losses_in
from partitioner.distributed.loss.doubled import Doubled, doubled
from partitioner.distributed.loss.level import Level
from partitioner.distributed.loss.mean import Told
from partitioner.distributed.traced.example import Example
from partitioner.distributed.traced.rows import growing
from partitioner.model.modes import in_mode
from partitioner.model.node import call_node, fill, made_of, target_name

LAYING = frozenset("contiguous flatten float getitem permute reshape squeeze to transpose unsqueeze view".split())
"""What lays results out, and computes nothing."""

MOST = 2**22
"""Elements beyond which nobody asks."""


@dataclass(frozen=True, eq=False)
class Tail:
    """The ops of a graph behind which no weight is read on the way to a loss.

    Args:
        loss: a scalar result.
        nodes: these ops, in order, with those that the batch alone tells of.
        drawn: what they read of the ops before them.
        given: what they read of the graph's arguments.
    """

    loss: torch.fx.Node
    nodes: tuple[torch.fx.Node, ...]
    drawn: tuple[torch.fx.Node, ...]
    given: tuple[torch.fx.Node, ...]

    @property
    def is_sum(self) -> bool:
        """Whether its last op is asked for a sum."""
        return "sum" in (*self.loss.args, *self.loss.kwargs.values())

    @property
    def is_mean(self) -> bool:
        """Whether it is known to be the mean over the targets that count: what the last weights make is laid out otherwise, and
        no more, before the last op."""
        read, laid = {*self.drawn}, True
        for node in (each for each in self.nodes if each is not self.loss and not read.isdisjoint(each.all_input_nodes)):
            read.add(node)
            laid &= target_name(node) in LAYING
        return laid and self.loss.target in MEANS and not self.is_sum


def tails_of(example: Example) -> list[Tail]:
    """Those of the model's own losses, which are its scalar results that have a gradient.

    Not of one that reads what neither has a gradient nor comes of the batch alone.
    """
    graph = example.traced.graph
    results = [graph.nodes[name] for name in graph.outputs if name in graph.by_name and name in example.differentiable]
    losses = [node for node in results if _like(node).dim() == 0]
    fixed = fixed_by(graph, example.places) if losses else set()
    return [tail for tail in (_tail(example, loss, fixed) for loss in losses) if tail is not None]


def _tail(example: Example, loss: torch.fx.Node, fixed: Collection[str]) -> Tail | None:
    graph, behind = example.traced.graph, made_of([loss])
    nodes: set[torch.fx.Node] = set()
    for node in reversed(graph.fx.nodes):
        last = node is loss or (node in behind and all(user in nodes for user in node.users if user in behind))
        if last and node.name in graph.by_name and not _weighs(example, node):
            nodes.add(node)
    nodes |= {node for node in made_of(nodes) if node.name in fixed and node.name in graph.by_name}
    read = {each for node in nodes for each in node.all_input_nodes} - nodes
    drawn = tuple(node for node in graph.fx.nodes if node in read and node.name in graph.by_name)
    given = tuple(node for node in graph.fx.nodes if node in read and node.name not in graph.by_name)
    told = all(node.name in example.differentiable for node in drawn) and all(node.op == "placeholder" for node in given)
    return Tail(loss, tuple(node for node in graph.fx.nodes if node in nodes), drawn, given) if loss in nodes and told else None


def of_batch(example: Example, node: torch.fx.Node) -> bool:
    """Whether something of the batch goes into a value. What is made of weights alone has no rows, as long as it may be."""
    return any(each.name in example.places for each in made_of([node]))


def _weighs(example: Example, node: torch.fx.Node) -> bool:
    """Whether an op reads a weight, and not just a number that is trained."""
    graph = example.traced.graph
    return any(
        each.name in graph.states and each.name in example.differentiable and _like(each).dim() > 0
        for each in node.all_input_nodes
    )


def _like(node: torch.fx.Node) -> torch.Tensor:
    """A fake of a value."""
    found: torch.Tensor = node.meta["example_value"]
    return found


Values = dict[torch.fx.Node, torch.Tensor]


def asked_of(tail: Tail, batches: Batches, larger: Example) -> Told | None:
    """What one of the model's own losses is of two microbatches, and of both, whatever its last weights might give.

    Args:
        tail: of the loss.
        batches: which know the model, and the first microbatch, of which rows are taken for both.
        larger: the model's graph of twice the rows.

    Returns:
        ``None`` where nothing can be said: that is much, or some op does not take such numbers.
    """
    if sum(_like(node).numel() for node in tail.drawn) > MOST:
        return None
    rows = torch.arange(batches.example.rows)
    same, halves = (rows, rows), rows.repeat_interleave(2).chunk(2)
    counted = bool(losses_in(batches.example, held_in(batches.example)))  # what differs in these is refused as that
    apart = torch.random.fork_rng([] if batches.device.type == "cpu" else [batches.device], device_type=batches.device.type)
    try:
        with torch.no_grad(), torch._C._DisableAutocast(), apart:
            behind = _same_tail(batches.example, tail, larger)
            found = [_told(tail, behind, batches, larger, pair) for pair in ((same,) if counted else (same, halves))]
    except Exception:  # an op takes what it is given by its values
        return None
    return next((told for told in found if told is not None and not told.is_mean), found[0])


def _told(tail: Tail, behind: Tail, batches: Batches, larger: Example, rows: Sequence[torch.Tensor]) -> Told | None:
    one, other, both = _inputs(tail, behind, batches, rows)
    first, second = (_value(batches.example, tail, each) for each in (one, other))
    whole, again = _value(larger, behind, both), _value(batches.example, tail, one)
    return Told(first, second, whole) if first == again else None


def _same_tail(example: Example, tail: Tail, larger: Example) -> Tail:
    place = example.traced.graph.outputs.index(tail.loss.name)
    (behind,) = [each for each in tails_of(larger) if each.loss.name == larger.traced.graph.outputs[place]]
    return behind


def _inputs(tail: Tail, behind: Tail, batches: Batches, rows: Sequence[torch.Tensor]) -> tuple[Values, Values, Values]:
    """What the ops read of two microbatches, whose inputs are some rows of the first one's, and of both.

    Raises:
        ValueError: nobody knows where the rows of something are.
    """
    example, inputs = batches.example, batches(0)
    one, other, both = Values(), Values(), Values()
    drawing = torch.Generator().manual_seed(0)
    for node, more in zip((*tail.drawn, *tail.given), (*behind.drawn, *behind.given), strict=True):
        if node.name in inputs:
            one[node] = other[node] = both[more] = value = inputs[node.name]
            if example.by_rows[example.places[node.name]]:
                one[node], other[node] = (value[each.to(value.device)] for each in rows)
                both[more] = torch.cat([one[node], other[node]])
            continue
        both[more] = _some(more, drawing, batches.device)
        along = _along(example, node, more)
        one[node], other[node] = (both[more], both[more]) if along is None else both[more].chunk(2, along)
    return one, other, both


def _some(node: torch.fx.Node, drawing: torch.Generator, device: torch.device) -> torch.Tensor:
    """Any numbers; of a weight, or of what the model holds, positive ones."""
    like = _like(node)
    dtype = torch.float64 if like.is_floating_point() else like.dtype
    found = torch.randn(like.shape, generator=drawing, dtype=torch.float64).to(device, dtype)
    return found.abs() if node.op == "placeholder" else found


def _along(example: Example, node: torch.fx.Node, more: torch.fx.Node) -> int | None:
    """In which dimension a value has rows, if it has any."""
    longer = growing(_like(node).shape, _like(more).shape)
    if not longer and not of_batch(example, node):
        return None
    (place,) = longer
    if (_like(node).shape[place], _like(more).shape[place]) != (example.rows, 2 * example.rows):
        raise ValueError("rows are not a dimension of their own")
    return place


def _value(example: Example, tail: Tail, given: Mapping[torch.fx.Node, torch.Tensor]) -> float:
    """What the ops make of it."""
    graph = example.traced.graph
    values = {node: doubled(each.clone()) for node, each in given.items()}  # they may be written
    with Level(), Doubled():  # type: ignore[no-untyped-call]
        for node in tail.nodes:
            with in_mode(graph.by_name[node.name].mode):
                values[node] = call_node(node, *fill((node.args, node.kwargs), values.__getitem__))
    return float(values[tail.loss])
