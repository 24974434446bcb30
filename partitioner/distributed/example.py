"""A model's one graph, and how a call's arguments become its inputs and its results become what the model returns.

    call     ids, mask=None          ->  graph inputs   ids
    results  (head_linear,)          ->  output         {"logits": head_linear, "k": 3}

Arguments and results are told by what they are: the tensor that the tracer was given, the tensor that the graph gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from partitioner.errors import InputError, TraceError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.capture.dynamo import Found, compiled
from partitioner.frontend.check.interpret import interpret
from partitioner.frontend.trace import graph_of
from partitioner.ir.graph import Graph, TensorMeta
from partitioner.model.call import Call, example_call
from partitioner.model.keep import state_kept
from partitioner.model.state import all_state
from partitioner.model.storage import tensor_bytes


@dataclass(frozen=True, eq=False)
class Example:
    """One call of a model, traced.

    Args:
        traced: the graph, and the state that it uses.
        call: the arguments.
        places: by the name of a graph's input, which of the call's tensors it is.
        structure: of what the model returns.
        leaves: of what it returns: ``(name, None)`` of a value of the graph, or ``("", value)`` of anything else.
        differentiable: the values of the graph that need a gradient.
    """

    traced: Traced
    call: Call
    places: dict[str, int]
    structure: TreeSpec
    leaves: tuple[tuple[str, Any], ...]
    differentiable: frozenset[str]

    def arguments(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The graph's inputs, by name, of a call with other tensors."""
        return {name: tensors[place] for name, place in self.places.items()}

    def output(self, results: Sequence[torch.Tensor]) -> Any:
        """What the model returns, from the graph's results."""
        known = dict(zip(self.traced.graph.outputs, results, strict=True))
        return tree_unflatten([known[name] if name else value for name, value in self.leaves], self.structure)


def example_in(model: nn.Module, inputs: Any, kwargs: Any, count: int) -> Example:
    """Trace the first of ``count`` microbatches of a batch.

    Args:
        model: what is called.
        inputs: one rank's batch, as `partition` takes it.
        kwargs: keyword arguments of it, by name.
        count: into how many it is divided.

    Raises:
        TraceError, InputError: as `example_of`; or the batch has no tensor, or does not divide.
    """
    call = example_call(model, inputs, kwargs)
    if call is None or not call.tensors:
        raise InputError("example_inputs has no tensor; give one rank's batch")
    return example_of(model, _first_part(call, count))


def example_of(model: nn.Module, call: Call) -> Example:
    """Trace one call, in the modes that are on now; it runs once, and the model's state is put back.

    Raises:
        TraceError: Python stands between several graphs, or the model returns an object that hides its tensors.
        InputError: the graph reads a number of the call that is no tensor.
    """
    graphs: list[tuple[Traced, Found, list[Any]]] = []

    def receive(found: Found) -> Callable[..., Sequence[Any]]:
        traced = graph_of(model, found)
        results: list[Any] = []
        graphs.append((traced, found, results))

        def run(*arguments: Any) -> Sequence[Any]:
            results[:] = interpret(traced.graph, arguments)
            return results

        return run

    if any(tensor.is_meta for tensor in all_state(model).values()):
        call = call.on("meta")
    method = compiled(model, receive, whole=True)
    args, kwargs = call.fill(call.tensors)
    with state_kept(model):
        returned = method(*args, **kwargs)
    if len(graphs) != 1:
        raise TraceError(
            f"{type(model).__name__} has no ops to share out" if not graphs else "the call was traced more than once"
        )
    traced, found, results = graphs[0]
    leaves, structure = tree_flatten(returned)
    places = _places(traced.graph, found, call)
    names = _names(traced.graph, results, call, places)
    return Example(traced, call, places, structure, tuple(_leaf(leaf, names) for leaf in leaves), differentiable(traced.graph))


def _first_part(call: Call, count: int) -> Call:
    """The first microbatch of a batch."""
    rows = call.tensors[0].shape[0] if call.tensors[0].dim() else 0
    if rows == 0 or rows % count:
        raise InputError(f"a batch of {rows} rows does not divide into {count} microbatches")
    leaves = (
        leaf[: rows // count].clone() if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == rows else leaf
        for leaf in call.leaves
    )
    return Call(call.spec, tuple(leaves))


def _places(graph: Graph, found: Found, call: Call) -> dict[str, int]:
    numbers = {id(tensor): place for place, tensor in enumerate(call.tensors)}
    places = {}
    for name, value in zip(graph.arguments, found.inputs, strict=True):
        if name in graph.states:
            continue
        if id(value) not in numbers:
            raise InputError(
                f"{graph.name} reads {name}, a {type(value).__name__} that is neither state nor a tensor among the example "
                "inputs; a pipeline is made for one size of microbatch, with tensors as inputs"
            )
        places[name] = numbers[id(value)]
    return places


def _names(graph: Graph, results: Sequence[Any], call: Call, places: dict[str, int]) -> dict[int, str]:
    """The name of each tensor that the model may return, by its identity."""
    nodes = graph.fx.output_node().args[0]
    names = {id(call.tensors[place]): name for name, place in places.items()}
    return names | {id(value): node.name for node, value in zip(nodes, results, strict=True)}  # type: ignore[arg-type]


def _leaf(leaf: Any, names: dict[int, str]) -> tuple[str, Any]:
    if isinstance(leaf, torch.Tensor):
        if id(leaf) not in names:
            raise TraceError(
                "the model returns a tensor that its graph does not make, such as a parameter: return a result of it"
            )
        return names[id(leaf)], None
    if leaf is not None and not isinstance(leaf, bool | int | float | str):
        raise TraceError(
            f"the model returns a {type(leaf).__name__}, which may hold tensors that cannot be seen: return tensors, tuples, "
            "lists and dicts, or a class that torch's pytree knows (of Hugging Face's: call it with use_cache=False)"
        )
    return "", leaf


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    """What a graph says of a tensor."""
    return TensorMeta(tuple(tensor.shape), tensor.dtype, tensor_bytes(tensor))


def differentiable(graph: Graph) -> frozenset[str]:
    """The values of a graph that need a gradient."""
    values = ((node.name, node.meta.get("example_value")) for node in graph.fx.nodes)
    return frozenset(name for name, value in values if isinstance(value, torch.Tensor) and value.requires_grad)
