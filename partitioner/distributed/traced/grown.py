"""The example of a larger microbatch, made of those of two smaller ones: the model is not traced again.

    1 row      view(x, 1, 128, 64)     float32[1, 128, 64]
    2 rows     view(x, 2, 128, 64)     float32[2, 128, 64]
    4 rows     view(x, 4, 128, 64)     float32[4, 128, 64]        every number goes on as from one to two

The values are made anew, of fakes, and have to be of the sizes that were foreseen. A model whose Python does something else
from some number of rows on is another graph there, which tracing alone can tell: bounds come of this, and predictions do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from partitioner.distributed.traced.example import Example, differentiable
from partitioner.distributed.traced.recalled import Calls
from partitioner.ir.graph import Graph, Op, TensorMeta
from partitioner.model.call import Call
from partitioner.model.modes import casts_kept, in_mode
from partitioner.model.node import fill


class _Unlike(Exception):
    """The two examples differ in more than sizes."""


def grown(fewer: Example, more: Example, rows: int) -> Example | None:
    """An example with still more rows than two others of one model.

    Args:
        fewer, more: with one number of rows, and with a larger one.
        rows: how many it shall have.

    Returns:
        The example; ``None`` where two do not tell what a third one is.

    Example:
        >>> from partitioner.distributed.traced.example import example_in
        >>> flat = torch.nn.Sequential(torch.nn.Unflatten(1, (2, 3)), torch.nn.Flatten(0, 1))
        >>> two, four = (example_in(flat, torch.ones(8, 6), None, count) for count in (4, 2))
        >>> print(grown(two, four, 8).traced.graph.ops[-1].outputs[0])
        float32[16, 3]
    """
    if fewer.traced.graph.bodies or more.traced.graph.bodies:
        return None  # branches of a cond have sizes of their own
    try:
        return _Growth(fewer.traced.graph, more.traced.graph, _reach(fewer.rows, more.rows, rows)).of(fewer, more)
    except Exception:  # an op may refuse these sizes, with any exception
        return None


def _reach(fewer: int, more: int, rows: int) -> Fraction:
    return Fraction(rows - more, more - fewer)


@dataclass(eq=False)
class _Growth:
    """Makes the third of two graphs.

    Attributes:
        fewer, more: the graphs.
        reach: how far it lies beyond the second, in steps as large as from the first.
        at: its nodes, by name.
        values: by name.
        calls: of ops, on fakes.
    """

    fewer: Graph
    more: Graph
    reach: Fraction
    fx: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    at: dict[str, torch.fx.Node] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)

    def of(self, fewer: Example, more: Example) -> Example:
        """The example that follows from two."""
        with casts_kept():
            for one, other in zip(self.fewer.fx.nodes, self.more.fx.nodes, strict=True):
                self._node(one, other)
        if self.fewer.outputs != self.more.outputs or fewer.leaves != more.leaves:
            raise _Unlike
        ops = tuple(map(self._op, self.fewer.ops, self.more.ops))
        inputs = tuple(
            (name, self._meta(before, after))
            for (name, before), (_, after) in zip(self.fewer.inputs, self.more.inputs, strict=True)
        )
        graph = replace(self.more, ops=ops, inputs=inputs, fx=self.fx)
        call = Call(more.call.spec, tuple(map(self._leaf, fewer.call.leaves, more.call.leaves)))
        return replace(more, traced=replace(more.traced, graph=graph), call=call, differentiable=differentiable(graph))

    @cached_property
    def fake(self) -> FakeTensorMode:
        """The mode of all values."""
        leaves = (leaf for node in self.more.fx.nodes for leaf in tree_leaves(node.meta.get("example_value")))
        return next(leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor))

    def _node(self, one: torch.fx.Node, other: torch.fx.Node) -> None:
        if (one.op, one.name, one.target) != (other.op, other.name, other.target):
            raise _Unlike
        args, kwargs = self._merged((one.args, dict(one.kwargs)), (other.args, dict(other.kwargs)))
        made = self.fx.create_node(other.op, other.target, *torch.fx.map_arg((args, kwargs), self._here), name=other.name)
        before, after = one.meta.get("example_value"), other.meta.get("example_value")
        value = None
        if other.op == "placeholder":
            value = self._given(before, after)
        elif other.op != "output":
            values, named = fill((args, kwargs), lambda node: self.values[node.name])
            with in_mode(self.more.by_name[other.name].mode):
                value = self.calls.as_in(after, other.op, other.target, values, named, self.fake)
            self._expected(before, after, value)
        made.meta = {**other.meta, "example_value": value}
        self.at[other.name], self.values[other.name] = made, value

    def _here(self, node: torch.fx.Node) -> torch.fx.Node:
        return self.at[node.name]

    def _given(self, one: Any, other: Any) -> Any:
        """An input of the graph; state is what it is."""
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.shape == other.shape:
            return other
        with self.fake:
            return self._tensor(one, other, other.device).requires_grad_(other.requires_grad)

    def _tensor(self, one: torch.Tensor, other: torch.Tensor, device: Any) -> torch.Tensor:
        shape, strides = self._merged((tuple(one.shape), one.stride()), (tuple(other.shape), other.stride()))
        return torch.empty_strided(shape, strides, dtype=other.dtype, device=device)

    def _leaf(self, one: Any, other: Any) -> Any:
        """An argument of the call, without values."""
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return self._tensor(one, other, "meta")
        return self._merged(one, other)

    def _expected(self, one: Any, other: Any, value: Any) -> None:
        """Hold a value against what two others say of its sizes."""
        if self._merged(_sizes(one), _sizes(other)) != _sizes(value):
            raise _Unlike

    def _merged(self, one: Any, other: Any) -> Any:
        """What follows from two arguments: the same if they are, and of numbers the next one."""
        if isinstance(one, torch.fx.Node) and isinstance(other, torch.fx.Node) and one.name == other.name:
            return other
        if type(one) is not type(other):
            raise _Unlike
        if isinstance(one, tuple | list) and len(one) == len(other):
            items = [self._merged(*pair) for pair in zip(one, other, strict=True)]
            return type(other)(*items) if hasattr(other, "_fields") else type(other)(items)
        if isinstance(one, dict) and one.keys() == other.keys():
            return {key: self._merged(one[key], other[key]) for key in other}
        if isinstance(one, slice):
            return slice(*(self._merged(getattr(one, name), getattr(other, name)) for name in ("start", "stop", "step")))
        if type(one) is int:
            return self._number(one, other)
        if one is not other and not bool(one == other):
            raise _Unlike
        return other

    def _number(self, one: int, other: int) -> int:
        found = other + (other - one) * self.reach
        if found.denominator != 1:
            raise _Unlike
        return int(found)

    def _meta(self, one: TensorMeta | None, other: TensorMeta | None) -> TensorMeta | None:
        if one is None or other is None:
            return None if one is other else self._merged(one, other)
        return TensorMeta(self._merged(one.shape, other.shape), other.dtype, self._number(one.bytes, other.bytes))

    def _op(self, one: Op, other: Op) -> Op:
        alike = replace(one, outputs=other.outputs, work=other.work)
        if alike != other or len(one.outputs) != len(other.outputs):
            raise _Unlike
        found = (self._meta(*pair) for pair in zip(one.outputs, other.outputs, strict=True))
        outputs = tuple(each for each in found if each is not None)
        return replace(other, outputs=outputs, work=self._merged(one.work, other.work))


def _sizes(value: Any) -> list[Any]:
    leaves = tree_leaves(value)
    return [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


@dataclass(eq=False)
class Microbatches:
    """The examples of one microbatch, for each number of them into which a batch is divided; each is made once.

    Args:
        trace: gives one, by their number.
        alike: whether larger ones may be made of two smaller ones.

    Attributes:
        traced: those that were traced, by their number.
        made: all, by their number.
    """

    trace: Callable[[int], Example]
    alike: bool = True
    traced: dict[int, Example] = field(default_factory=dict)
    made: dict[int, Example] = field(default_factory=dict)

    def of(self, count: int) -> Example:
        """One of so many, traced or made of two smaller ones."""
        if count not in self.made:
            known = sorted(each for each in self.traced if each > count)[:2] if self.alike else []
            pair = [self.traced[each] for each in known]
            found = grown(pair[1], pair[0], pair[0].rows * known[0] // count) if len(pair) == 2 else None
            self.made[count] = found or self.of_trace(count)
        return self.made[count]

    def of_trace(self, count: int) -> Example:
        """One of so many, traced."""
        if count not in self.traced:
            self.traced[count] = self.trace(count)
        return self.traced[count]

    def settle(self, count: int) -> bool:
        """Trace one of so many, and whether that is what was made of two; if not, what comes of tracing is taken."""
        made, found = self.of(count).traced.graph, self.of_trace(count).traced.graph
        if made is found or (made.ops, made.inputs) == (found.ops, found.inputs):
            return True
        self.made = dict(self.traced)
        return False
