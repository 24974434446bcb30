"""A model's call with several times the rows, of which no op runs: what it would return, and its graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from partitioner.distributed.traced.example import Example, Traces, differentiable
from partitioner.distributed.traced.unread import unread
from partitioner.errors import InputError
from partitioner.frontend.capture.dynamo import compiled
from partitioner.ir.graph import Graph
from partitioner.model.call import Call, on_examples
from partitioner.model.keep import state_kept


def whole_results(model: nn.Module, example: Example, count: int) -> list[Any]:
    """What the model would return of a batch: tensors without values, for no op runs, and whatever else it returns.

    Args:
        model: what was traced.
        example: a call with a microbatch.
        count: into how many the batch is divided.

    Raises:
        TraceError, InputError: as `example_of`.
        InputError: it returns another structure.
    """
    returned, structure = tree_flatten(_looked_at(model, _so_many(example, count))[0])
    if structure != example.structure:
        raise InputError(
            f"the model returns another structure for a batch than for one of {count} microbatches; ask for one microbatch"
        )
    return returned


def larger(model: nn.Module, example: Example) -> Example | None:
    """The example, of twice its rows; no op runs. Of what it has, the call, graph and inputs are those of more rows.

    Returns:
        ``None`` if the model takes no other number of rows, or is no one graph then.
    """
    call = _so_many(example, 2)
    try:
        graph = _looked_at(model, call)[1]
    except Exception:  # the model's own
        return None
    if graph is None:
        return None
    return replace(example, traced=replace(example.traced, graph=graph), call=call, differentiable=differentiable(graph))


def _so_many(example: Example, count: int) -> Call:
    """A call with so many times the rows."""
    along = iter(example.by_rows)
    leaves = (
        torch.cat([leaf] * count) if isinstance(leaf, torch.Tensor) and next(along) else leaf for leaf in example.call.leaves
    )
    return Call(example.call.spec, tuple(leaves))


def _looked_at(model: nn.Module, call: Call) -> tuple[Any, Graph | None]:
    """What a model would return, in tensors without values, and the graph of which that is."""
    traces = Traces(model)
    traces.end()
    args, kwargs = call.fill(call.tensors)
    with unread(model)(), state_kept(model), on_examples(model):
        return compiled(model, traces.receive, whole=True, once=True)(*args, **kwargs), traces.last
