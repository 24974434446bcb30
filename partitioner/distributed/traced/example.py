"""A model's one graph, and how a call's arguments become its inputs and its results become what the model returns.

    call     ids, mask=None          ->  graph inputs   ids
    results  (head_linear,)          ->  output         {"logits": head_linear, "k": 3}

Arguments and results are told by what they are: the tensor that the tracer was given, the tensor that the graph gave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from partitioner.distributed.traced.begun import begun, begun_unseen, held_in, instead_of
from partitioner.distributed.traced.rows import by_rows, rows_of
from partitioner.distributed.traced.unread import unread
from partitioner.errors import InputError, PartitionerError, TraceError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.capture.dynamo import Found, compiled
from partitioner.frontend.check.interpret import interpret
from partitioner.frontend.trace import graph_of
from partitioner.ir.graph import Graph, TensorMeta
from partitioner.ir.saving import saved_graph
from partitioner.model.call import Call, example_call, on_examples
from partitioner.model.keep import state_kept
from partitioner.model.state import all_state, lies_on_meta
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
        by_rows: of each of the call's tensors, whether a batch has a row of it for each of its own rows.
        is_current: whether the model would still be traced to the same graph, or with what another call has beside its
            tensors; asks the tracer's guards, and no op runs.
    """

    traced: Traced
    call: Call
    places: dict[str, int]
    structure: TreeSpec
    leaves: tuple[tuple[str, Any], ...]
    differentiable: frozenset[str]
    by_rows: tuple[bool, ...]
    is_current: Callable[..., bool] = field(default=lambda call=None: True)

    @property
    def rows(self) -> int:
        """How many the call has."""
        return self.call.tensors[self.by_rows.index(True)].shape[0]

    def arguments(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The graph's inputs, by name, of a call with other tensors."""
        return {name: tensors[place] for name, place in self.places.items()}

    def output(self, results: Sequence[torch.Tensor], given: Mapping[str, torch.Tensor]) -> Any:
        """What the model returns, from the graph's results and its inputs, some of which it may return as they are."""
        known = {**given, **dict(zip(self.traced.graph.outputs, results, strict=True))}
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
    rows = rows_of(call)
    assert call is not None
    if rows % count:
        raise InputError(f"a batch of {rows} rows does not divide into {count} microbatches")
    along = by_rows(call)
    taken = iter(along)
    leaves = (leaf[: rows // count].clone() if isinstance(leaf, torch.Tensor) and next(taken) else leaf for leaf in call.leaves)
    return replace(example_of(model, Call(call.spec, tuple(leaves))), by_rows=along)


def example_of(model: nn.Module, call: Call) -> Example:
    """Trace one call, in the modes that are on now; it runs once, and the model's state is put back.

    Raises:
        TraceError: Python stands between several graphs, or the model returns an object that hides its tensors, or gives
            an attribute another value.
        InputError: the call fails, or the graph reads a number of it that is no tensor.
    """
    traces = Traces(model)
    if lies_on_meta(model):
        call = call.on("meta")
    method = compiled(model, traces.receive, whole=True, once=True)
    args, kwargs = call.fill(call.tensors)
    try:
        with traces.unread(), state_kept(model) as changed, on_examples(model):
            returned = method(*args, **kwargs)
            left = held_in(model, traces.named())
    except TraceError:
        if begun_unseen(model, call):
            return example_of(model, call)
        raise
    if len(traces.found) != 1:
        raise TraceError(
            f"{type(model).__name__} has no ops to share out" if not traces.found else "the call was traced more than once"
        )
    traced, found = traces.found[0]
    leaves, structure = tree_flatten(returned)
    places = _places(traced.graph, found, call)
    names = _names(traced.graph, traces.end(), call, places)
    if changed and not traces.settles(method, call, traced.graph):
        left |= {*traced.graph.outputs} - {names.get(id(leaf)) for leaf in leaves}
        if begun(model, call, traced.graph, left, partial(traces.now, method, call)):
            return example_of(model, call)
        raise TraceError(
            f"{type(model).__name__}.forward gives {', '.join(changed[:3])} another value, and ranks would go on with that of "
            f"the example; {instead_of(model, changed)}"
        )
    return Example(
        traced,
        call,
        places,
        structure,
        tuple(_leaf(leaf, names, model) for leaf in leaves),
        differentiable(traced.graph),
        by_rows(call),
        partial(traces.again, method, call, traced.graph),
    )


class Traces:
    """Receives what the tracer finds in a call: runs the first graph once, and later only tells of which graph a call would be.

    Args:
        model: whose call.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.ended, self.unread = model, False, unread(model)
        self.found: list[tuple[Traced, Found]] = []
        self.results: list[Any] = []
        self.last: Graph | None = None

    def receive(self, found: Found) -> Callable[..., Sequence[Any]]:
        """What the tracer calls with a graph; gives what runs it."""
        traced = graph_of(self.model, found, alike=True)
        same: dict[int, int] = {}  # places of results that are an argument, as after out=; the model may keep them
        if not self.ended:
            self.found.append((traced, found))

        def run(*arguments: Any) -> Sequence[Any]:
            self.last = traced.graph
            if self.ended:
                empty = _without_storage(traced.graph)
                return [arguments[same[place]] if place in same else each for place, each in enumerate(empty)]
            with torch.device("meta") if any(each.is_meta for each in arguments) else nullcontext():
                self.results = interpret(traced.graph, arguments)
            places = {id(each): place for place, each in enumerate(arguments)}
            same.update((place, places[id(each)]) for place, each in enumerate(self.results) if id(each) in places)
            return self.results

        return run

    def named(self) -> list[tuple[str, Any]]:
        """The results of the call, and what the graph calls them."""
        return [*zip(self.found[0][0].graph.outputs, self.results, strict=True)] if len(self.found) == 1 else []

    def end(self) -> list[Any]:
        """The results of the call, which are not kept; from now on nothing runs."""
        results, self.results, self.found, self.ended = self.results, [], [], True
        return results

    def again(self, method: Callable[..., Any], known: Call, first: Graph, other: Call | None = None) -> bool:
        """Whether the call would be of the same graph as the first time, also with what another one has beside tensors."""
        now = self.now(method, other or known, known)
        return now is first or (now is not None and _facts(now) == _facts(first))

    def now(self, method: Callable[..., Any], call: Call, known: Call | None = None) -> Graph | None:
        """The graph of which a call would be now, if it is of one; with the tensors of another one, if need be."""
        self.last = None
        args, kwargs = call.fill((known or call).tensors)
        try:
            with self.unread():
                method(*args, **kwargs)
        except PartitionerError:
            return None
        return self.last

    def settles(self, method: Callable[..., Any], call: Call, first: Graph) -> bool:
        """Whether what the call gives to attributes stays: a second call is of one graph, and changes nothing."""
        with state_kept(self.model):
            alike = self.again(method, call, first)
            try:
                with state_kept(self.model) as twice:
                    alike &= self.again(method, call, first)
            except Exception:  # forward reads a tensor that it has left there, which has no values
                return False
        return alike and not twice


def _facts(graph: Graph) -> tuple[str, list[Any]]:
    """What tells a graph from others."""
    return saved_graph(graph).digest(), [op.mode for op in graph.ops]


def _without_storage(graph: Graph) -> list[Any]:
    """Tensors like a graph's results."""
    nodes: Any = graph.fx.output_node().args[0]
    metas = (graph.metas.get(node.name) for node in nodes)
    return [None if meta is None else torch.empty(meta.shape, dtype=meta.dtype, device="meta") for meta in metas]


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


def _leaf(leaf: Any, names: dict[int, str], model: nn.Module) -> tuple[str, Any]:
    if isinstance(leaf, torch.Tensor):
        if id(leaf) not in names:
            known = {id(tensor): key for key, tensor in all_state(model).items()}
            what = f"its {known[id(leaf)]} as it is" if id(leaf) in known else "a tensor as it is"
            raise TraceError(
                f"the model returns {what}, which no op of its graph makes: return a result of it, such as .clone()"
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
