"""The ways in which each op of a graph can be shared out, found by trying: all placements of its inputs, each followed through.

    linear(x, weight)     R, S(0) -> S(2)     S(2), S(1) -> P     S(1), R -> S(1)     ...

A way counts only if the same op on the parts makes the same calls of ATen's, each on parts of the shapes that were foreseen.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from partitioner.distributed.tensor.aten import AtenTrace, Slot, aten_trace
from partitioner.distributed.tensor.losses import form_of_logits
from partitioner.distributed.tensor.rules import propagate, result_of
from partitioner.ir.sharding import P, Placement, R, shard
from partitioner.ir.shared import Rule
from partitioner.model.node import call_target, fill, target_name

MOST = 3000
"""Combinations of placements that are tried of one op; of more, only those in which inputs of one shape are placed alike."""

SIZED = frozenset({"view", "reshape", "expand", "broadcast_to", "_unsafe_view"})
"""Calls that are told the sizes of their result."""

SIZES = frozenset({"view", "_unsafe_view", "reshape", "expand", "split", "split_with_sizes", "empty"})
"""Calls of ATen's in whose arguments there are sizes, which are others for parts."""


@dataclass(frozen=True)
class Call:
    """What a node calls: the same of whole values, and of parts.

    Args:
        op, target, args, kwargs: as in `torch.fx.Node`, with nodes in the arguments.
    """

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def on(self, values: Mapping[torch.fx.Node, Any]) -> Any:
        """Call it."""
        return call_target(self.op, self.target, *fill((self.args, self.kwargs), values.__getitem__))


class Ways:
    """Finds the ways of ops, each distinct one once.

    Args:
        ranks: along the axis.
        blocks: of how many blocks side by side a dimension may consist.
    """

    def __init__(self, ranks: int, blocks: Sequence[int]) -> None:
        self.ranks, self.blocks = ranks, (1, *blocks)
        self.known: dict[Any, list[tuple[tuple[Placement, ...], Placement]]] = {}
        self.rules: dict[tuple[int, int, float], tuple[Rule, ...]] = {}

    def of(self, node: torch.fx.Node) -> list[tuple[tuple[Placement, ...], Placement]]:
        """Placements of a node's inputs, in the order of `inputs_of`, and of its result; none of them all whole."""
        inputs = inputs_of(node)
        if not inputs or any(source.op == "get_attr" for source in node.all_input_nodes) or not _is_fake(node):
            return []
        key = self._key(node, inputs)
        if key not in self.known:
            self.known[key] = self._found(node, inputs)
        return self.known[key]

    def _key(self, node: torch.fx.Node, inputs: Sequence[torch.fx.Node]) -> Any:
        """What tells ops apart."""
        numbers = {source: number for number, source in enumerate(inputs)}
        text = repr(
            map_arg((node.args, dict(node.kwargs)), lambda source: f"%{numbers.get(source, source.meta.get('example_value'))}")
        )
        forms = tuple((tuple(each.shape), each.stride(), each.dtype) for source in inputs for each in tensors_of(source))
        return node.op, node.target, text, forms

    def _found(self, node: torch.fx.Node, inputs: Sequence[torch.fx.Node]) -> list[tuple[tuple[Placement, ...], Placement]]:
        call = Call(node.op, node.target, node.args, node.kwargs)
        whole = {source: source.meta["example_value"] for source in node.all_input_nodes}
        try:
            trace = _traced(call, whole, inputs)
        except Exception:  # what cannot be called on fakes works on whole values
            return []
        found = []
        for places in self._tried(inputs):
            spread = [place for place, source in zip(places, inputs, strict=True) for _ in tensors_of(source)]
            held = propagate(trace, spread, self.ranks)
            result = None if held is None else result_of(trace, held)
            if held is not None and result is not None and result != R and self._same(node, inputs, places, trace, held):
                found.append((places, result))
        if is_vocabulary(node, inputs) and shard(0).fits(tuple(inputs[1].meta["example_value"].shape), self.ranks):
            found.append(((R, shard(0)), P))
        form = form_of_logits(node, inputs)
        if form is not None and form.fits(tuple(inputs[0].meta["example_value"].shape), self.ranks):
            found.append(((form, R), P))
        return found

    def _tried(self, inputs: Sequence[torch.fx.Node]) -> Iterator[tuple[Placement, ...]]:
        """Combinations of placements."""
        options = [self._options(source) for source in inputs]
        count = 1
        for each in options:
            count *= len(each)
        shapes = [tuple(tensors_of(source)[0].shape) for source in inputs]
        for places in itertools.product(*options) if count <= MOST else self._alike(options, shapes):
            if any(place != R for place in places):
                yield places

    def _alike(
        self, options: Sequence[Sequence[Placement]], shapes: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[Placement, ...]]:
        kinds = list(dict.fromkeys(shapes))
        for chosen in itertools.islice(itertools.product(*(options[shapes.index(shape)] for shape in kinds)), MOST):
            yield tuple(chosen[kinds.index(shape)] for shape in shapes)

    def _options(self, source: torch.fx.Node) -> list[Placement]:
        """How an input may be placed."""
        shapes = [tuple(each.shape) for each in tensors_of(source)]
        floating = all(each.is_floating_point() for each in tensors_of(source))
        cuts = [shard(dim, blocks) for dim in range(len(shapes[0])) for blocks in self.blocks]
        return [
            R,
            *([P] if floating else []),
            *(each for each in cuts if all(each.fits(shape, self.ranks) for shape in shapes)),
        ]

    def _same(
        self,
        node: torch.fx.Node,
        inputs: Sequence[torch.fx.Node],
        places: Sequence[Placement],
        trace: AtenTrace,
        held: Mapping[int, Placement],
    ) -> bool:
        """Whether the op on parts makes the same calls, on parts of the shapes foreseen."""
        parts = {source: source.meta["example_value"] for source in node.all_input_nodes}
        for source, place in zip(inputs, places, strict=True):
            parts[source] = tree_map(lambda leaf, place=place: part_like(leaf, place, self.ranks), source.meta["example_value"])
        call = call_on_parts(node, dict(zip(inputs, places, strict=True)), self.ranks, _shape_of(trace, held, self.ranks))
        with suppress(Exception):
            return _agree(trace, _traced(call, parts, inputs), held, self.ranks)
        return False


def inputs_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose values, which are tensors or hold them, a node reads; each once."""
    return [source for source in node.all_input_nodes if tensors_of(source)]


def tensors_of(node: torch.fx.Node) -> list[torch.Tensor]:
    """The tensors in a node's value."""
    value = node.meta.get("example_value")
    leaves = [value] if isinstance(value, torch.Tensor) else tree_leaves(value)  # which is ten times as long, for one of them
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def blocks_in(graph: torch.fx.Graph) -> tuple[int, ...]:
    """Of how many blocks side by side dimensions consist, as ops that take them apart tell."""
    found = set()
    for node in graph.nodes:
        value = node.meta.get("example_value")
        pieces = value if isinstance(value, tuple | list) else ()
        shapes = {tuple(each.shape) if isinstance(each, torch.Tensor) else None for each in pieces}
        if 1 < len(pieces) <= 4 and len(shapes) == 1 and shapes != {None}:
            found.add(len(pieces))
    return tuple(sorted(found))


def call_on_parts(
    node: torch.fx.Node, places: Mapping[torch.fx.Node, Placement], ranks: int, shape: tuple[int, ...] | None
) -> Call:
    """What a node calls where its inputs are parts: sizes among its arguments are those of parts."""
    name = target_name(node)
    source = node.args[0] if node.args else None
    if name in SIZED and isinstance(source, torch.fx.Node) and shape is not None:
        method = "expand" if name in ("expand", "broadcast_to") else "reshape" if name == "reshape" else "view"
        return Call("call_method", method, (source, *shape), {})
    if name == "unflatten" and isinstance(source, torch.fx.Node) and shape is not None:
        return Call("call_method", "view", (source, *shape), {})
    if name == "split" and isinstance(source, torch.fx.Node) and places[source].kind == "S":
        named = "dim" in node.kwargs
        dim = node.kwargs["dim"] if named else node.args[2] if len(node.args) > 2 else 0
        if isinstance(dim, int) and dim % tensors_of(source)[0].dim() == places[source].dim and len(node.args) > 1:
            sizes = tree_map(lambda size: size // ranks, node.args[1])
            return Call(node.op, node.target, (source, sizes, *node.args[2:]), node.kwargs)
    return Call(node.op, node.target, node.args, node.kwargs)


def is_vocabulary(node: torch.fx.Node, inputs: Sequence[torch.fx.Node]) -> bool:
    """Whether a node is an embedding of whose rows each rank can have some."""
    if node.target is not torch.nn.functional.embedding or len(inputs) != 2 or list(node.args[:2]) != list(inputs):
        return False
    options = dict(zip(("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"), node.args[2:], strict=False))
    options |= node.kwargs
    return options.get("max_norm") is None and not options.get("scale_grad_by_freq") and not options.get("sparse")


def part_like(leaf: Any, place: Placement, ranks: int) -> Any:
    """A fake of one rank's part of a tensor, in memory as the whole is: with the same dimensions in front of others."""
    if not isinstance(leaf, torch.Tensor) or place.kind != "S":
        return leaf
    shape = place.local(tuple(leaf.shape), ranks)
    order = sorted(range(leaf.dim()), key=lambda dim: (leaf.stride(dim), -dim))
    strides, step = [0] * leaf.dim(), 1
    for dim in order:
        if leaf.stride(dim):
            strides[dim], step = step, step * shape[dim]
    with leaf.fake_mode if isinstance(leaf, FakeTensor) else torch.device(leaf.device):
        return torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)


_plain = torch._C._DisableAutocast
"""Autocast casts elements one by one, which any way allows, and keeps what it has cast, so that two tries make other calls."""


def _is_fake(node: torch.fx.Node) -> bool:
    tensors = [tensor for source in (*node.all_input_nodes, node) for tensor in tensors_of(source)]
    return bool(tensors_of(node)) and all(isinstance(tensor, FakeTensor) for tensor in tensors)


def _traced(call: Call, values: Mapping[torch.fx.Node, Any], inputs: Sequence[torch.fx.Node]) -> AtenTrace:
    with torch.no_grad(), _plain():
        if not any(isinstance(each, torch.dtype) for each in tree_leaves((call.args, call.kwargs))):
            values = {source: tree_map(_single, value) for source, value in values.items()}
        leaves = [leaf for source in inputs for leaf in tree_leaves(values[source]) if isinstance(leaf, FakeTensor)]
        with leaves[0].fake_mode:
            return aten_trace(lambda: call.on(values), leaves)


def _single(leaf: Any) -> Any:
    """A tensor in single precision, for autocast takes what ops refuse: inputs of several dtypes, or of half precision. No way
    depends on which dtype it is, but where one is asked for by name."""
    return leaf.float() if isinstance(leaf, FakeTensor) and leaf.dtype in (torch.float16, torch.bfloat16) else leaf


def _shape_of(trace: AtenTrace, held: Mapping[int, Placement], ranks: int) -> tuple[int, ...] | None:
    """The shape of one rank's part of the result, if that is one tensor."""
    result = trace.results[0] if len(trace.results) == 1 else None
    return held[result.number].local(result.shape, ranks) if isinstance(result, Slot) and result.number in held else None


def _agree(whole: AtenTrace, part: AtenTrace, held: Mapping[int, Placement], ranks: int) -> bool:
    """Whether two traces are the same but for the shapes of parts."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, Slot) and isinstance(other, Slot):
            known = held.get(one.number)
            return known is None or known.local(one.shape, ranks) == other.shape
        return type(one) is type(other) and bool(operator.eq(one, other))

    def alike(one: Any, other: Any, sizes: bool = False) -> bool:
        ones, others = tree_leaves(one), tree_leaves(other)
        return len(ones) == len(others) and all(
            same(a, b) or (sizes and isinstance(a, int) and isinstance(b, int)) for a, b in zip(ones, others, strict=True)
        )

    return len(whole.calls) == len(part.calls) and all(
        one.op is other.op
        and alike((one.args, one.kwargs), (other.args, other.kwargs), one.name in SIZES)
        and alike(one.results, other.results)
        for one, other in zip(whole.calls, part.calls, strict=True)
    )


def whole_rule(node: torch.fx.Node, seconds: float = 0.0) -> Rule:
    """The rule of a node on whole values, which every node has."""
    return Rule((R,) * len(inputs_of(node)), R, seconds)


def rules_of(ways: Ways, node: torch.fx.Node, seconds: float) -> tuple[Rule, ...]:
    """The rules of a node: on whole values, and on parts, of which each rank does its share of the work.

    Nodes that are alike get the same tuple: what is found of the rules of one is found of all.
    """
    known = ways.of(node)
    key = id(known), len(inputs_of(node)), seconds
    if not known or key not in ways.rules:
        found = (
            whole_rule(node, seconds),
            *(Rule(places, result, seconds / (ways.ranks if _is_less(places) else 1)) for places, result in known),
        )
        if not known:  # a list of no ways, of which there are many
            return found
        ways.rules[key] = found
    return ways.rules[key]


def _is_less(places: Sequence[Placement]) -> bool:
    """Whether a rank does less than all of an op: summands are as large as what they sum to."""
    return any(place.kind == "S" for place in places)
