"""Sizes that no tracer knows, for they follow from values: of what a mask picks, of the rows that go to one expert.

    chosen = router(x).argmax(-1)
    rows = (chosen == 0).nonzero()     (u0, 1) to the tracer
    left = expert(x[rows])             what it costs hangs on u0

So what they follow from is run once, as the graph is found, and what ops cost and take is reckoned at the sizes of that call.
These are kept where torch keeps a user's hints of such sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.analysis.observe import observe
from partitioner.frontend.check.interpret import values_of
from partitioner.ir.access import CAST, CHECKED, RNG
from partitioner.ir.graph import Graph
from partitioner.model.fakes import tensors_in
from partitioner.model.node import call_node, made_of


def at_picked_sizes(traced: Traced, inputs: Sequence[Any]) -> Traced:
    """A graph whose ops give, and compute, as much as in one call; their shapes stay as they were, for calls differ in them.

    Args:
        traced: a graph that has its fakes; as it is, if no size in it follows from values, or it cannot be run here and now.
        inputs: the values of its placeholders; left as they are.
    """
    graph = traced.graph
    needed = made_of(_picking(graph))
    if not needed or not _is_harmless(graph, needed):
        return traced
    try:
        _run(graph, needed, inputs)
    except Exception:  # the model's own error, which its call will raise; or state lies apart
        return traced
    effects = observe(graph.fx, {})
    ops = []
    for op in graph.ops:
        seen = effects[op.name]
        outputs = (replace(known, bytes=meta.bytes) for known, meta in zip(op.outputs, seen.outputs, strict=True))
        ops.append(replace(op, outputs=tuple(outputs), work=seen.work))
    return Traced(replace(graph, ops=tuple(ops)), traced.state)


def _picking(graph: Graph) -> list[torch.fx.Node]:
    """The nodes of whose results a size is the first of its symbol."""
    found, known = [], set[Any]()
    for node in graph.fx.nodes:
        symbols = {size.node.expr for size in _sizes(node.meta.get("example_value")) if _is_picked(size)}
        if symbols - known:
            found.append(node)
            known |= symbols
    return found


def _sizes(value: Any) -> list[Any]:
    """All sizes of a value: of tensors in it, or the number that it is."""
    if isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
        return [value]
    return [size for tensor in tensors_in(value) if tensor.layout is torch.strided for size in tensor.shape]


def _is_picked(size: Any) -> bool:
    """Whether a size follows from values alone."""
    return isinstance(size, torch.SymInt) and size.node.hint is None and size.node.expr.is_Symbol


def _is_harmless(graph: Graph, nodes: set[torch.fx.Node]) -> bool:
    """Whether nobody would see that some ops have run: they write to what they make, and draw."""
    made = {op.name for op in graph.ops}
    written = (access.resource for op in graph.ops if graph.nodes[op.name] in nodes for access in op.accesses if access.write)
    return all(resource in made or resource in (RNG, CHECKED) or resource.startswith(CAST) for resource in written)


def _run(graph: Graph, needed: set[torch.fx.Node], inputs: Sequence[Any]) -> None:
    """Run some of the ops, and note the sizes that they show."""
    devices = {value.device for value in inputs if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
    with torch.random.fork_rng(devices), torch.no_grad():
        values_of(graph, map(_apart, inputs), [op.name for op in graph.ops if graph.nodes[op.name] in needed], (), _noted)


def _apart(value: Any) -> Any:
    """A value outside of autograd's graph."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _noted(node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    """What a node gives, whose sizes are kept."""
    value = call_node(node, args, kwargs)
    for size, number in zip(_sizes(node.meta.get("example_value")), _sizes(value), strict=True):
        if _is_picked(size):
            size.node.shape_env.var_to_hint_override[size.node.expr] = number
    return value
