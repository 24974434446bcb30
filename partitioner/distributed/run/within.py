"""A loss that the model itself computes, of which the same is asked: of the ops behind the last weights.

    forward    images, texts -> towers -> projections  |  a / a.norm()   a @ b.T   cross_entropy   -> loss
                                                       ^ any numbers, with a row for each of the batch's

What a property of these ops is does not need the values that the weights make, which may lie on other ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from partitioner.distributed.run.counts import fixed_by
from partitioner.distributed.run.record import MOST, Record, has_rows
from partitioner.distributed.traced.example import Example
from partitioner.model.modes import in_mode
from partitioner.model.node import call_node, fill, made_of


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


@dataclass(frozen=True, eq=False)
class Again:
    """A loss that can be computed again.

    Args:
        record: of its ops.
        loss: what they gave.
        trained: which of the tensors given to them are results of weights, with rows.
        by_row: which have rows.
        values: what stood for the nodes that these ops read.
    """

    record: Record
    loss: torch.Tensor
    trained: tuple[bool, ...]
    by_row: tuple[bool, ...]
    values: Mapping[str, torch.Tensor]


def again(
    example: Example,
    tail: Tail,
    inputs: Mapping[str, torch.Tensor],
    device: torch.device,
    known: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> Again | None:
    """One of the model's own losses, of whatever its last weights might give.

    Args:
        example: a microbatch, as it was traced.
        tail: of the loss.
        inputs: of the graph, of a microbatch.
        device: where they are.
        known: what stands for some of the nodes; any numbers stand for the others.

    Returns:
        ``None`` where that is much, or some op does not take such numbers.
    """
    graph, drawing = example.traced.graph, torch.Generator().manual_seed(0)
    if sum(_like(node).numel() for node in tail.drawn) > MOST:
        return None

    def some(node: torch.fx.Node) -> torch.Tensor:
        if node.name in known:
            return known[node.name].detach().clone()
        return torch.randn(_like(node).shape, generator=drawing).to(device, _like(node).dtype)

    values = {node: some(node).requires_grad_() for node in tail.drawn}
    values |= {node: inputs[node.name].clone() for node in tail.given if node.name in inputs}  # they may be written
    given = [*values.values()]
    values |= {node: some(node).abs() for node in tail.given if node not in values}
    read = {node.name: each for node, each in values.items()}
    apart = torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type)
    try:
        with torch.no_grad(), apart, Record(given) as record:
            for node in tail.nodes:
                with in_mode(graph.by_name[node.name].mode):
                    values[node] = call_node(node, *fill((node.args, node.kwargs), values.__getitem__))
    except Exception:  # an op takes what it is given by its values
        return None
    named = (*tail.drawn, *(node for node in tail.given if node.name in inputs))
    by_row = tuple(_has_rows(each, example.rows) and of_batch(example, node) for each, node in zip(given, named, strict=True))
    trained = tuple(has and place < len(tail.drawn) for place, has in enumerate(by_row))
    return Again(record, values[tail.loss], trained, by_row, read)


def _has_rows(value: torch.Tensor, rows: int) -> bool:
    """Also of a batch and its sequences in one dimension."""
    return has_rows(value, rows) or (value.dim() in (1, 2) and len(value) % rows == 0)
