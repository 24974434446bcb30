"""Equal ops of one level as one op: branches of the same shape share a call instead of waiting for each other.

    a = linear(x, v, c)        y = baddbmm(stack([c, d]), stack([x, z]), stack([v, w]).mT)
    b = linear(z, w, d)        a, b = y[0], y[1]

Weights are put together in each call, for they are the model's and may change in between. So small ops gain, of which a call
costs more than its bytes, and large ones lose. Results are equal to rounding: other kernels sum in another order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from partitioner.backends.race import gradients, stand_in
from partitioner.model.call import memory
from partitioner.model.node import target_name

STACKED, CHANNELS = 0, 1
"""The dimension along which results lie together: a new one in front, or that of channels."""

POINTWISE = frozenset(
    "relu gelu silu sigmoid tanh elu leaky_relu softplus relu6 hardtanh hardswish hardsigmoid mish exp neg abs".split()
)
"""Of one tensor and numbers, and the same for all of its elements."""

CHANNELWISE = frozenset(
    "max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d batch_norm".split()
)
"""What treats each channel by itself."""

CONVOLUTIONS = frozenset(["conv1d", "conv2d", "conv3d"])
LAYERS = CONVOLUTIONS | {"linear", "batch_norm"}
"""What makes a tensor of its own, of which autograd keeps nothing."""

Key = tuple[object, ...]
"""What ops must have in common to become one."""


def put_together(module: GraphModule, arguments: Sequence[Any]) -> GraphModule | None:
    """A module that computes the same with equal ops of one level put together.

    Args:
        module: ops of torch that draw no random numbers.
        arguments: what it is called with.

    Returns:
        The module; ``None`` if there is nothing to put together, an op writes to what it is given, or who gets the results
        could tell.
    """
    module = _out_of_place(module)
    found = _Values(module)
    with torch.no_grad():
        found.run(*arguments)
    if found.writes:
        return None
    merger = _Merger(found.values)
    merger.run(module.graph)
    if not merger.joins:
        return None
    together = GraphModule({}, merger.graph, type(module).__name__)
    with suppress(RuntimeError):  # of a view, say, for which what lies with others is not in one piece
        if outside(together.forward, arguments) == outside(module.forward, arguments):
            return together
    return None


def outside(module: Callable[..., Any], arguments: Sequence[Any]) -> tuple[object, ...]:
    """What is seen of results besides their values.

    That is, which of them and of the arguments lie in one memory, strides, and which arguments have a gradient from each: one
    that has none stays without, where zeros would make an optimizer move it.
    """
    leaves = [stand_in(value) for value in arguments]
    results, wanted = tree_leaves(module(*leaves)), [leaf for leaf in leaves if leaf.requires_grad]
    where = memory([*leaves, *results])
    reached = [gradients([each], wanted, keep=True) if each.requires_grad else () for each in results]
    first = [where.index(each) for each in where]
    return first, [each.stride() for each in results], [[one is not None for one in each] for each in reached]


def _out_of_place(module: GraphModule) -> GraphModule:
    """The same with activations in memory of their own that would overwrite what a layer has made for nobody else."""
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if target_name(node) in POINTWISE and node.kwargs.get("inplace"):
            (source,) = node.all_input_nodes
            if len(source.users) == 1 and target_name(source) in LAYERS:
                node.kwargs = {**node.kwargs, "inplace": False}
    return GraphModule({}, graph, type(module).__name__)


class _Values(Interpreter):
    """Notes what each op gives, on the meta device, and whether any op writes."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.values: dict[Node, Any] = {}
        self.writes = False

    def run_node(self, n: Node) -> Any:
        given = [value for value in map(self.env.get, n.all_input_nodes) if isinstance(value, torch.Tensor)]
        before = [value._version for value in given if not value.is_inference()]
        result = super().run_node(n)
        self.writes |= before != [value._version for value in given if not value.is_inference()] or _says_so(n)
        self.values[n] = result.to("meta") if isinstance(result, torch.Tensor) else None
        return result


def _says_so(node: Node) -> bool:
    """Whether an op says that it writes; a tensor that was made in inference mode does not count how often it is written."""
    name = target_name(node) if node.op.startswith("call_") else ""
    return name.endswith("_") or name in ("iadd", "isub", "imul", "itruediv") or bool(node.kwargs.get("inplace"))


class _Merger:
    """Copies a graph, level by level, with equal ops put together.

    Args:
        values: what each of its ops gives.

    Attributes:
        graph: the copy.
        joins: how many ops stand for several.
    """

    def __init__(self, values: Mapping[Node, Any]) -> None:
        self.values, self.graph, self.joins = values, Graph(), 0
        self.made: dict[Node, Node] = {}
        self.joined: dict[Node, tuple[Node, int, int]] = {}  # what holds it with others, along which dimension, and where
        self.members: dict[Node, list[Node]] = {}

    def run(self, graph: Graph) -> None:
        """Copy it."""
        for name in graph.find_nodes(op="placeholder"):
            self.made[name] = self.graph.placeholder(name.name)
        for group in self._groups(graph):
            if len(group) == 1 or not self._join(group):
                for node in group:
                    self.made[node] = self.graph.node_copy(node, self._piece)
        results = torch.fx.node.map_arg(graph.output_node().args[0], self._whole)
        self.graph.output(results)

    def _groups(self, graph: Graph) -> list[list[Node]]:
        """Ops that may become one, level by level."""
        level: dict[Node, int] = {}
        groups: defaultdict[tuple[int, Key], list[Node]] = defaultdict(list)
        for node in graph.nodes:
            level[node] = 1 + max((level[source] for source in node.all_input_nodes), default=-1)
            if node.op in ("call_function", "call_method"):
                groups[level[node], self._key(node)].append(node)
        return [group for _, group in sorted(groups.items(), key=lambda item: item[0][0])]

    def _key(self, node: Node) -> Key:
        """What an op has in common with those that it may be put together with."""
        name = target_name(node)
        if name not in POINTWISE | CHANNELWISE | CONVOLUTIONS | {"linear"} or (name == "batch_norm" and _trains(node)):
            return (node,)
        return name, *map(self._form, node.args), *((key, self._form(value)) for key, value in node.kwargs.items())

    def _form(self, value: Any) -> object:
        """Sizes and dtype of a tensor; anything else as it is."""
        given = self.values.get(value) if isinstance(value, Node) else None
        return repr(value) if given is None else (given.shape, given.dtype)

    def _join(self, group: list[Node]) -> bool:
        """Put a group together, if that can be done."""
        name = target_name(group[0])
        group = sorted(group, key=self._place)
        if name == "linear":
            return self._hold(group, self._linear(group), STACKED)
        if name in CONVOLUTIONS:
            return self._hold(group, self._convolution(group), CHANNELS)
        held = self._held([node.args[0] for node in group])
        if held is None or (name in CHANNELWISE and held[1] != CHANNELS):
            return False
        first = group[0]
        parameters = [self._parameters(group, number) for number in range(1, len(first.args))]
        return self._hold(group, self.graph.create_node(first.op, first.target, (held[0], *parameters), first.kwargs), held[1])

    def _place(self, node: Node) -> int:
        """Where the input of an op lies among those that it lies with."""
        source: Any = node.args[0]
        return self.joined[source][2] if source in self.joined else 0

    def _hold(self, group: list[Node], base: Node | None, along: int) -> bool:
        """Note that the results of a group lie together."""
        if base is None:
            return False
        self.joins += 1
        self.members[base] = group
        self.joined.update((node, (base, along, number)) for number, node in enumerate(group))
        return True

    def _held(self, nodes: Sequence[Any]) -> tuple[Node, int] | None:
        """What holds these results and nothing else, in this order, and along which dimension."""
        if nodes[0] not in self.joined:
            return None
        base, along, _ = self.joined[nodes[0]]
        return (base, along) if self.members[base] == list(nodes) else None

    def _together(self, nodes: Sequence[Node], along: int) -> Node:
        """Results side by side."""
        held = self._held(nodes)
        if held is not None and held[1] == along:
            return held[0]
        return self._call(torch.stack if along == STACKED else torch.cat, list(map(self._piece, nodes)), along)

    def _parameters(self, group: Sequence[Node], number: int) -> Any:
        """One after the other, what the ops of a group have at a place: weights, or the constant that they share."""
        given: list[Any] = [node.args[number] for node in group]
        return self._call(torch.cat, list(map(self._piece, given))) if isinstance(given[0], Node) else given[0]

    def _linear(self, group: list[Node]) -> Node | None:
        inputs, weights, biases = (list(each) for each in zip(*((*node.args, None)[:3] for node in group), strict=True))
        count = len(group)
        *lead, width = self.values[group[0]].shape
        if group[0].kwargs or self.values[weights[0]].dim() != 2 or (biases[0] and self.values[biases[0]].shape != (width,)):
            return None
        if len(set(inputs)) == 1:
            bias = None if biases[0] is None else self._parameters(group, 2)
            wide = self._call(torch.nn.functional.linear, self._piece(inputs[0]), self._parameters(group, 1), bias)
            return self._call(torch.movedim, self._call(torch.unflatten, wide, -1, (count, width)), -2, 0)
        rows = (count, math.prod(lead), self.values[inputs[0]].shape[-1])
        stacked = self._call(torch.reshape, self._together(inputs, STACKED), rows)
        weight = self._call(torch.transpose, self._together(weights, STACKED), 1, 2)
        if biases[0] is None:
            found = self._call(torch.bmm, stacked, weight)
        else:
            found = self._call(torch.baddbmm, self._call(torch.unsqueeze, self._together(biases, STACKED), 1), stacked, weight)
        return self._call(torch.reshape, found, (count, *lead, width))

    def _convolution(self, group: list[Node]) -> Node | None:
        inputs: list[Any] = [node.args[0] for node in group]
        arguments: Any = group[0].args
        if group[0].kwargs or len(arguments) != 7 or self.values[inputs[0]].dim() != self.values[arguments[1]].dim():
            return None
        x, _, bias, *options, groups = arguments
        shared = len(set(inputs)) == 1 and groups == 1
        given = self._piece(x) if shared else self._together(inputs, CHANNELS)
        bias = None if bias is None else self._parameters(group, 2)
        return self._call(
            group[0].target, given, self._parameters(group, 1), bias, *options, 1 if shared else groups * len(group)
        )

    def _piece(self, node: Node) -> Node:
        """One result by itself."""
        if node not in self.made:
            base, along, number = self.joined[node]
            if along == STACKED:
                self.made[node] = self._call(torch.select, base, 0, number)
            else:
                width = self.values[node].shape[CHANNELS]
                self.made[node] = self._call(torch.narrow, base, CHANNELS, number * width, width)
        return self.made[node]

    def _whole(self, node: Node) -> Node:
        """One result in memory of its own, as whoever gets it expects."""
        if node not in self.joined:
            return self.made[node]
        lies = torch.contiguous_format if self.values[node].is_contiguous() else torch.preserve_format
        return self.graph.call_function(torch.clone, (self._piece(node),), {"memory_format": lies})

    def _call(self, function: Any, *arguments: Any) -> Node:
        return self.graph.call_function(function, arguments)


def _trains(node: Node) -> bool:
    """Whether a batch norm reads its batch: then it writes statistics, and keeps them in one tensor for each layer."""
    return len(node.args) < 6 or bool(node.args[5])
