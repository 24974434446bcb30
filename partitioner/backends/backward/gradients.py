"""Which ops add to the gradient of which tensor: eager's own autograd graph is asked, in one call that runs as eager would.

An op's result may be its argument (`contiguous`), its backward may use an argument twice (``x * x``), autocast may keep what
one op has cast for the next: no schema says so, and all of it decides in which order gradients are summed. So the first call
that records gradients goes through the graph in program order on the caller's thread; after each op the nodes that it has added
to autograd's graph are looked at. An edge that leaves them is a part of the gradient of the tensor in which it ends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils._pytree import tree_leaves

from partitioner.backends.nodes import results
from partitioner.backends.reference import Reference
from partitioner.ir.gradient import Gradient, Part
from partitioner.model.node import fill

AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
"""The class of the node in which the graph of a leaf ends."""

Edge = tuple[Node, int]
"""A tensor as autograd knows it: a node of its graph, and which of the node's results."""

DECIDING = frozenset({"branch", "loop"})
"""Functions that stand for ``torch.cond`` and ``while_loop`` in a graph."""

PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Observer(Reference):
    """Runs a plan's graph in program order, and notes whose gradients its ops add to.

    Attributes:
        notes: of the last call.
    """

    notes: Notes

    def _results(self, arguments: Sequence[Any]) -> list[Any]:
        graph = self.plan.graph
        values = {**self.bodies, **dict(zip(graph.arguments, arguments, strict=True))}
        notes = self.notes = Notes({name: values[name] for name in graph.arguments})
        last = graph.last_uses([op.name for op in graph.ops], graph.outputs)
        for op in graph.ops:
            node = graph.nodes[op.name]
            reads = {source.name: values[source.name] for source in node.all_input_nodes if source.op != "get_attr"}
            notes.enter(op.name, reads)
            values[op.name] = self.call(node, values)
            notes.leave(op.name, values[op.name], reads)
            if getattr(node.target, "__name__", "") in DECIDING:
                notes.refuse(f"{op.name} decides in each call what it computes")
            for name in last[op.name]:
                del values[name]
        found = list(fill(results(graph), lambda node: values[node.name]))
        notes.returned(found, {name: values[name] for name in graph.arguments})
        return found


@dataclass
class _Tensor:
    """A tensor: the value that it is or is in, the op that made it, and how often each op uses it in backward."""

    value: str
    leaf: int | None
    maker: str
    terms: Counter[str] = field(default_factory=Counter)
    names: dict[str, list[tuple[str, int | None]]] = field(default_factory=dict)
    results: list[int] = field(default_factory=list)

    def gradient(self) -> Gradient:
        parts = (Part(op, *name, self.terms[op]) for op, names in self.names.items() for name in names)
        return Gradient(self.value, self.leaf, self.maker, tuple(parts), tuple(self.results))


class Notes:
    """What one call has shown.

    Args:
        arguments: of the call, by name.

    Attributes:
        reason: why backward cannot run on lanes, as far as this call shows; ``""`` if nothing speaks against it.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.reason = ""
        self.made_by: dict[Node, str] = {}
        self.tensors: dict[Edge, _Tensor] = {}
        self.reading: defaultdict[Edge, list[tuple[str, int | None]]] = defaultdict(list)
        self.versions = {name: value._version for name, value in arguments.items() if _has_gradient(value)}
        for name, value in arguments.items():
            self._register(name, value)

    @property
    def gradients(self) -> tuple[Gradient, ...]:
        """Of every tensor that has one, in the order in which they were made."""
        return tuple(tensor.gradient() for tensor in self.tensors.values())

    def enter(self, op: str, reads: Mapping[str, Any]) -> None:
        """An op is about to be called. A view whose base was written gets a new node as soon as it is looked at."""
        self.reading.clear()
        for name, value in reads.items():
            for leaf, edge in _edges(value):
                self._walk(op, edge[0])
                self.reading[edge].append((name, leaf))
            self._register(name, value)

    def leave(self, op: str, result: Any, reads: Mapping[str, Any]) -> None:
        """An op has been called: it has made its result, and may have written what it read.

        What it has read and not used may be used in the next call, unless all that it does is to give an argument back.
        """
        for name, value in ((op, result), *reads.items()):
            for _, edge in _edges(value):
                self._walk(op, edge[0])
            self._register(name, value)
        given_back = any(edge in self.reading for _, edge in _edges(result))
        if not given_back and any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result)):
            for edge, names in self.reading.items():
                self.tensors[edge].names.setdefault(op, names[:])

    def returned(self, found: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        """The call ends with these results."""
        if {name: value._version for name, value in arguments.items() if _has_gradient(value)} != self.versions:
            self.refuse("an argument with a gradient is written in place")
        for position, value in enumerate(found):
            for leaf, edge in _edges(value):
                if leaf is not None:
                    self.refuse("a result holds several tensors")
                elif edge not in self.tensors:
                    self.refuse("a result is a view whose base has been written since")
                elif self.tensors[edge].maker:
                    self.tensors[edge].results.append(position)

    def _register(self, name: str, value: Any) -> None:
        for leaf, edge in _edges(value):
            if edge not in self.tensors:
                self.tensors[edge] = _Tensor(name, leaf, self.made_by.setdefault(edge[0], ""))
                if not _is_plain(value, leaf):
                    self.refuse(f"{name} is no plain tensor")

    def _walk(self, op: str, start: Node) -> None:
        """Take in the nodes that an op has added to autograd's graph."""
        if start in self.made_by:
            return
        self._look_at(op, start)
        self.made_by[start] = op
        waiting = [start]
        while waiting:
            for node, number in waiting.pop().next_functions:
                if node is not None and node not in self.made_by:
                    self._look_at(op, node)
                    self.made_by[node] = op
                    waiting.append(node)
                elif node is not None and self.made_by[node] != op:
                    self._part(op, (node, number))

    def _look_at(self, op: str, node: Node) -> None:
        """Refuse nodes that a segment's backward could not run."""
        if isinstance(node, AccumulateGrad):
            self.refuse(f"{op} uses a parameter that is none of its arguments")
        if type(node).__name__ == "CheckpointFunctionBackward":
            self.refuse(f"{op} is a reentrant checkpoint, which backward has to run with all of the graph")

    def _part(self, op: str, edge: Edge) -> None:
        if edge not in self.tensors:
            self.refuse(f"{op} takes up what {self.made_by[edge[0]]} has computed, and no value passes between them")
            return
        self.tensors[edge].terms[op] += 1
        self.tensors[edge].names.setdefault(op, self.reading[edge][:] or [("", None)])

    def refuse(self, reason: str) -> None:
        """Note a reason, unless there is one."""
        self.reason = self.reason or reason


def _edges(value: Any) -> Iterator[tuple[int | None, Edge]]:
    """The tensors of a value that have a gradient: their number in it, ``None`` if it is one itself; and their edges."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad and not _is_cut_off(value):
            edge = get_gradient_edge(value)
            yield None, (edge.node, edge.output_nr)
    else:
        for number, leaf in enumerate(tree_leaves(value)):
            for _, found in _edges(leaf) if isinstance(leaf, torch.Tensor) else ():
                yield number, found


def _is_cut_off(tensor: torch.Tensor) -> bool:
    """Whether it is a view, made without recording, of a tensor with a gradient: it says that it has one, and has none."""
    try:
        if tensor.grad_fn is not None or not tensor._is_view():
            return False
    except RuntimeError:  # the base has been written since, and autograd refuses to say what such a view is then
        return True
    with torch.enable_grad():
        view = tensor.view_as(tensor).grad_fn
    return view is None or view.next_functions[0][0] is None


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _is_plain(value: Any, leaf: int | None) -> bool:
    tensor = value if leaf is None else tree_leaves(value)[leaf]
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_nested
