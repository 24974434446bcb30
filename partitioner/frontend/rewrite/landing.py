"""Results that are brought together: where Python goes on after a graph on several devices, it finds them all on one.

    h = linear(x)         h = linear(x)
    return h              return landed(h)

`landed` is an op like any other, and so it is placed, and what it is given travels to it.

What wants a gradient is brought there before anything else reads it, for its gradient to be whole where Python gives it a hook:

    h = linear(x)         h = landed(linear(x))
    z = h * 2             z = h * 2
    return h, z           return h, landed(z)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import setitem
from typing import TypeVar

import torch

from partitioner.ir.graph import Graph
from partitioner.model.fakes import tensors_in
from partitioner.model.storage import storage_key

Value = TypeVar("Value")


def landed(value: Value) -> Value:
    """What it is given, where it is placed.

    >>> landed(3)
    3
    """
    return value


def land(module: torch.fx.GraphModule, *, ends: bool = False) -> None:
    """Put `landed` behind every result of a graph that its ops make, and behind what is given to it of which one is a view.

    Args:
        module: the graph; changed.
        ends: whether forward returns behind it. Then a view of what is given is the caller's, and stays where that lies.
    """
    graph, output = module.graph, module.graph.output_node()
    made = [node for node in output.all_input_nodes if node.op.startswith("call_")]
    placeholders = graph.find_nodes(op="placeholder")
    if ends:
        callers = {storage for node in placeholders for storage in _storages(node)}
        made = [node for node in made if callers.isdisjoint(_storages(node))]
    seen = {storage for node in made for storage in _storages(node)}
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for given in placeholders:
        if not seen.isdisjoint(_storages(given)):
            with graph.inserting_before(first):
                _put_behind(given, tuple(given.users))
    shared = Counter(storage for node in graph.nodes for storage in _storages(node))
    for node in made:
        at_once = _wants_gradient(node) and all(shared[storage] == 1 for storage in _storages(node)) and not _is_written(node)
        with graph.inserting_after(node) if at_once else graph.inserting_before(output):
            _put_behind(node, tuple(node.users) if at_once else (output,))


def _put_behind(node: torch.fx.Node, users: Iterable[torch.fx.Node]) -> None:
    there = node.graph.call_function(landed, (node,))
    there.meta = dict(node.meta)
    for user in users:
        user.replace_input_with(node, there)


def _wants_gradient(node: torch.fx.Node) -> bool:
    return any(tensor.requires_grad for tensor in tensors_in(node.meta.get("example_value")))


def _is_written(node: torch.fx.Node) -> bool:
    """Whether an op writes to it that does not return it."""
    return any(user.target is setitem or node in user.kwargs.values() for user in node.users)


def _storages(node: torch.fx.Node) -> set[int]:
    return {storage_key(tensor) for tensor in tensors_in(node.meta.get("example_value"))}


def together(graph: Graph) -> set[str]:
    """The ops that belong where Python goes on: those, and what gives a view of what is used after the graph, too.

    A copy of it would miss what is written to the one or the other. And what a graph has made a leaf belongs there itself, for
    its copy would not get its gradient.
    """
    results = {name for name, node in graph.nodes.items() if node.target is landed}
    held = Counter(storage for name in results for storage in {*graph.by_name[name].storages})
    wishes = (node for node in graph.nodes.values() if node.target == "requires_grad_")
    leaves = {each.name for node in wishes for each in node.all_input_nodes} & graph.by_name.keys()
    own = (storage for name in leaves for storage in graph.by_name[name].storages)
    shared = {*graph.given}.union(own, (storage for storage, times in held.items() if times > 1)).intersection(held)
    return results.union(op.name for op in graph.ops if shared.intersection(op.storages))
