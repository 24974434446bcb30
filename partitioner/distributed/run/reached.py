"""Parameters that a loss does not reach have no gradient, as in one process, and no optimizer moves them.

    stage 0    side = tanh(W x)    stage 1    {"logits": ..., "aside": V side}    loss of logits alone: W and V have none

Between stages each value that passes has a gradient, of zeros if need be; W would decay, and momentum push it on. So what each
result is made of is read off the whole graph, and which results a loss has reached is told with the loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from partitioner.distributed.traced.example import Example
from partitioner.ir.access import ANY, TOKENS
from partitioner.ir.graph import Graph
from partitioner.model.state import all_parameters

LIKE = frozenset({"expand_as", "reshape_as", "to", "type_as", "view_as"})
"""Ops that make of their first argument something like the second."""


def results_of(graph: Graph, results: Sequence[str]) -> dict[str, int]:
    """By the key of each state that a graph uses, the results that a gradient may come from, as bits: never too few.

    Args:
        graph: of the whole model.
        results: names of what counts.
    """
    everything = (1 << len(results)) - 1
    found = dict.fromkeys(graph.states.values(), 0)
    if any(access.resource == ANY for op in graph.ops for access in op.accesses):
        return dict.fromkeys(found, everything)
    changed, known = _written_later(graph), graph.by_name
    lost, forms = _without_gradient(graph, changed), _asked_for_their_form(graph)
    bits: defaultdict[str, int] = defaultdict(int)  # of values, and of storages that are written after they were made

    def storages(name: str) -> Collection[str]:
        return changed.intersection(known[name].storages) if name in known else ()

    for place, name in enumerate(results):
        for each in (name, *storages(name)):
            bits[each] |= 1 << place
    for op in reversed(graph.ops):
        touched = [access for access in op.accesses if access.resource in changed]
        own = bits[op.name]
        for access in touched:
            own |= bits[access.resource] if access.write else 0
        asked = forms.get(op.name, frozenset())
        for name in (each for each in op.inputs if each not in lost and each not in asked):
            for each in (name, *storages(name)):
                bits[each] |= own
        for each in (access.resource for access in touched if access.resource.startswith("self.")):
            bits[each] |= own
        for key in {*op.state}.difference(map(graph.states.get, asked)):
            found[key] |= own
    return found


def _asked_for_their_form(graph: Graph) -> dict[str, frozenset[str]]:
    """By op, the values of which it reads shape, dtype or device alone: no gradient goes there."""
    found = {}
    for node in graph.fx.nodes:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if name in LIKE and (node.op == "call_method" or _is_known(node.target)):
            others = {each.name for each in (*node.args[1:], *node.kwargs.values()) if isinstance(each, torch.fx.Node)}
            found[node.name] = frozenset(others - {getattr(node.args[0], "name", "")})
    return found


def _written_later(graph: Graph) -> frozenset[str]:
    """The storages that another op than their maker writes."""
    return frozenset(
        access.resource for op in graph.ops for access in op.accesses if access.write and access.resource != op.name
    ).difference(TOKENS)


def _without_gradient(graph: Graph, changed: frozenset[str]) -> set[str]:
    """Values through which no gradient goes: detached, or made of such. What is written later may get one."""
    values = ((node.name, node.meta.get("example_value")) for node in graph.fx.nodes)
    none = {name for name, value in values if isinstance(value, torch.Tensor) and not value.requires_grad}
    return none - {op.name for op in graph.ops if changed.intersection(op.storages)}


def differentiable_results(example: Example) -> list[tuple[int, str]]:
    """The results of a model that have a gradient: their places, and what the graph calls them."""
    outputs = enumerate(example.traced.graph.outputs)
    return [(place, name) for place, name in outputs if name in example.differentiable]


def doubtful(part: nn.Module, example: Example) -> dict[nn.Parameter, int]:
    """The parameters of a rank's part that not every result of the model reaches, and the bits of those that do."""
    results = [name for _, name in differentiable_results(example)]
    bits, everything = results_of(example.traced.graph, results), (1 << len(results)) - 1
    found: dict[nn.Parameter, int] = {}
    for key, parameter in all_parameters(part).items():
        if key in bits:
            found[parameter] = found.get(parameter, 0) | bits[key]
    return {parameter: each for parameter, each in found.items() if each != everything}


def all_reached(part: nn.Module, example: Example) -> bool:
    """Whether a gradient comes to each trained parameter of a part, whatever the loss reads: all results are made of all of
    them, by ops of torch alone. What others give in a backward, custom ops, functions and checkpoints, none can tell before.
    """
    doubted = any(each.requires_grad for each in doubtful(part, example))
    return not doubted and all(_is_known(node.target) for node in example.traced.graph.fx.nodes if node.op == "call_function")


def _is_known(target: Any) -> bool:
    """Whether a function that a graph calls is torch's, Python's, or ours between ranks."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).startswith("aten.")
    where = getattr(target, "__module__", None) or "torch"  # those in C++ have none
    ours = where.startswith("partitioner.distributed.")  # what ranks of a tensor axis exchange
    return not isinstance(target, torch._ops.HigherOrderOperator) and (
        ours or where.partition(".")[0] in ("torch", "_operator", "builtins")
    )
