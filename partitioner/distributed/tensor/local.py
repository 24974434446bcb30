"""The graph of one rank of a tensor axis: its share of each op, and what passes between ranks as ops of their own.

    x            whole                     q.weight     columns 0 to 31 of 64
    x_f          fan_out(x)                a summed gradient
    q            linear(x_f, q.weight)     columns 0 to 31
    ...
    out          linear(a, out.weight)     a summand
    out_r        all_reduce(out)           whole

What comes after, cuts into stages, plans, programs, sees an ordinary graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from partitioner.distributed.tensor.collectives import conversion, embedding_of_part
from partitioner.distributed.tensor.draws import Draws
from partitioner.distributed.tensor.losses import (
    cross_entropy_of_part,
    exchange_seconds,
    form_of_logits,
    part_arguments,
)
from partitioner.distributed.tensor.ways import Call, call_on_parts, inputs_of, is_vocabulary, part_like, tensors_of
from partitioner.distributed.traced.example import meta_of
from partitioner.distributed.traced.recalled import Calls
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.access import LATER, RNG, SENT, Access
from partitioner.ir.graph import NOTHING, Graph, Op
from partitioner.ir.mode import Mode
from partitioner.ir.sharding import F, P, Placement, R, shard
from partitioner.ir.shared import Sharding
from partitioner.model.modes import in_mode
from partitioner.model.node import fill
from partitioner.model.storage import tensor_bytes


@dataclass(frozen=True)
class Place:
    """A rank on the axis.

    Args:
        rank: which.
        group: the name that torch.distributed has for the ranks of the axis; ``""`` where there is no job.
    """

    rank: int = 0
    group: str = ""


@dataclass(eq=False)
class _Local:
    """Writes the graph of one rank.

    Attributes:
        made: by value, form and the mode under which it was converted, the node; the form in which it is made has no mode.
        forms: by value and mode, those that there are.
        storages: that the value of a new node may share.
        calls: of ops, on fakes.
    """

    graph: Graph
    sharding: Sharding
    place: Place
    draws: Draws
    fx: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    ops: list[Op] = field(default_factory=list)
    made: dict[tuple[str, Placement, Mode | None], torch.fx.Node] = field(default_factory=dict)
    storages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    forms: dict[tuple[str, Mode | None], list[Placement]] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)

    def placeholder(self, node: torch.fx.Node) -> None:
        """An argument, or one rank's part of a parameter."""
        form = self.sharding.state.get(node.name, R)
        value = node.meta.get("example_value")
        part = part_like(value, form, self.sharding.axis.ranks)
        if isinstance(value, torch.Tensor) and part is not value:
            part.requires_grad_(value.requires_grad)
        self._new(node, self.fx.create_node("placeholder", node.name, name=node.name), part, form)
        key = self.graph.states.get(node.name)
        self.storages[node.name] = (node.name if key is None else f"self.{key}",)

    def constant(self, node: torch.fx.Node) -> None:
        """A graph module that ops call."""
        self._new(node, self.fx.node_copy(node), self.graph.bodies[str(node.target)], R)

    def op(self, node: torch.fx.Node) -> None:
        """One rank's share of an op."""
        known, rule, inputs = self.graph.by_name[node.name], self.sharding.rules[node.name], inputs_of(node)
        forms = dict(zip(inputs, rule.inputs, strict=True))
        split = rule.output != R
        sources = {source: self._in(source, F if split and form == R else form, known) for source, form in forms.items()}
        sources |= {source: self.made[source.name, R, None] for source in node.all_input_nodes if source not in sources}
        call = self._call(node, forms, rule.output)
        args, kwargs = torch.fx.map_arg((call.args, dict(call.kwargs)), sources.__getitem__)
        if any(access.resource == RNG for access in known.accesses):
            call = replace(call, op="call_function", target=self.draws.drawing(call.op, call.target, alike=not split))
        made = self.fx.create_node(call.op, call.target, args, kwargs, name=node.name)
        converted = [source for old, source in sources.items() if source.name != old.name]
        value = self._run(made, node, known.mode) if split or converted else node.meta.get("example_value")
        self._new(node, made, value, rule.output)
        views = self._shared(converted) if set(known.storages) != {known.name} else set()
        self.storages[node.name] = tuple(sorted({*known.storages, *views}))
        names = {old.name: source.name for old, source in sources.items()}
        sends = call.target is cross_entropy_of_part
        less = split and any(form.kind == "S" for form in rule.inputs)
        self.ops.append(
            replace(
                known,
                inputs=tuple(
                    dict.fromkeys([*(names.get(name, name) for name in known.inputs), *(source.name for source in converted)])
                ),
                accesses=tuple(sorted({*self._touched(known, sources), *[Access(SENT, True)][:sends]})),
                exchange=exchange_seconds(inputs, self.sharding.axis) if sends else 0.0,
                storages=self.storages[node.name] if known.tensor else (),
                state=tuple(key for key in known.state if self._still(key, sources)),
                outputs=tuple(meta_of(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)),
                work=None if known.work is None else known.work.shared(self.sharding.axis.ranks if less else 1),
            )
        )

    def _shared(self, nodes: Iterable[torch.fx.Node]) -> set[str]:
        return {storage for node in nodes for storage in self.storages.get(node.name, ())}

    def _touched(self, op: Op, sources: Mapping[torch.fx.Node, torch.fx.Node]) -> tuple[Access, ...]:
        """What an op touches that reads converted forms of some of its inputs: those, and no longer the inputs."""
        new = self._shared(source for old, source in sources.items() if source.name != old.name)
        kept = self._shared(source for old, source in sources.items() if source.name == old.name)
        gone = self._shared(sources) - kept - new
        writes = any(access.write and access.resource in gone for access in op.accesses)
        found = {access for access in op.accesses if access.resource not in gone}
        return tuple(sorted(found | {Access(storage, writes) for storage in new}))

    def result(self, node: torch.fx.Node) -> torch.fx.Node:
        """A value, whole, for the call's results."""
        if not tensors_of(node):
            return self.made[node.name, R, None]
        return self._in(node, R, None)

    def _still(self, key: str, sources: Mapping[torch.fx.Node, torch.fx.Node]) -> bool:
        """Whether an op still reads a parameter itself, and not a form of it."""
        return any(old.name == new.name and self.graph.states.get(old.name) == key for old, new in sources.items())

    def _call(self, node: torch.fx.Node, forms: Mapping[torch.fx.Node, Placement], output: Placement) -> Call:
        inputs = list(forms)
        if output == P and is_vocabulary(node, inputs) and forms[inputs[1]] == shard(0):
            padding = node.args[2] if len(node.args) > 2 else node.kwargs.get("padding_idx")
            return Call("call_function", embedding_of_part, (*inputs, padding, self.place.rank), {})
        if output == P and forms.get(inputs[0]) == form_of_logits(node, inputs):
            return Call(
                "call_function", cross_entropy_of_part, part_arguments(node, inputs, self.place.rank, self.place.group), {}
            )
        value = node.meta.get("example_value")
        shape = output.local(tuple(value.shape), self.sharding.axis.ranks) if isinstance(value, torch.Tensor) else None
        if output == R:
            return Call(node.op, node.target, node.args, node.kwargs)
        return call_on_parts(node, forms, self.sharding.axis.ranks, shape)

    def _in(self, node: torch.fx.Node, form: Placement, op: Op | None) -> torch.fx.Node:
        """A value in a form, converted at need."""
        mode = None if op is None else op.mode
        have = {
            held: self.made[node.name, held, under] for under in (None, mode) for held in self.forms.get((node.name, under), ())
        }
        grad = any(tensor.requires_grad for tensor in tensors_of(node))
        need = R if form == F and not grad else form
        size = sum(map(tensor_bytes, tensors_of(node)))
        way = self.sharding.axis.way(tuple(have), need, size, grad)
        assert way is not None, f"{node.name} is {', '.join(map(str, have))} and cannot be {need}"
        for source, target in way[1]:
            have[target] = self._converted(node, have[source], source, target, op)
        return have[need]

    def _converted(
        self, node: torch.fx.Node, made: torch.fx.Node, source: Placement, target: Placement, op: Op | None
    ) -> torch.fx.Node:
        """A new op that converts."""
        axis, mode = self.sharding.axis, None if op is None else op.mode
        function, rest = conversion(source, target, axis.ranks, self.place.rank, self.place.group)
        name = f"{node.name}_{target.kind.lower()}{target.dim if target.kind == 'S' else ''}"
        new = self.fx.create_node("call_function", function, (made, *rest), name=name)
        value = self._run(new, node, mode)
        self._new(node, new, value, target, mode)
        shares = target == F
        self.storages[new.name] = (new.name, *(self.storages[made.name] if shares else ()))
        grad = any(tensor.requires_grad for tensor in tensors_of(node))
        size = sum(map(tensor_bytes, tensors_of(node)))
        seconds = axis.seconds((source, target), size, grad)
        key = self.graph.states.get(made.name)
        sends = seconds is not None and seconds[0] > 0
        accesses = {Access(storage) for storage in self.storages[made.name]} | {Access(new.name, True)}
        accesses |= {Access(SENT, True)} if sends else set()
        accesses |= {Access(LATER, True)} if seconds is not None and seconds[1] > 0 else set()
        self.ops.append(
            Op(
                name=new.name,
                target=function.__name__,
                inputs=() if key is not None else (made.name,),
                accesses=tuple(sorted(accesses)),
                storages=self.storages[new.name],
                state=() if key is None else (key,),
                path="" if op is None else op.path,
                source="" if op is None else op.source,
                outputs=tuple(meta_of(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)),
                work=NOTHING,
                mode=mode,
                exchange=seconds[0] if seconds is not None else 0.0,
            )
        )
        return new

    def _run(self, node: torch.fx.Node, like: torch.fx.Node, mode: Mode | None) -> Any:
        """What a node gives, of fakes; whether it needs a gradient is known from the node that it stands for."""
        values = {source: source.meta.get("example_value") for source in node.all_input_nodes}
        fake = next(leaf.fake_mode for leaf in tree_leaves(tuple(values.values())) if isinstance(leaf, FakeTensor))
        args, kwargs = fill((node.args, node.kwargs), values.__getitem__)
        with in_mode(mode):
            return self.calls.as_in(like.meta.get("example_value"), node.op, node.target, args, kwargs, fake)

    def _new(self, node: torch.fx.Node, made: torch.fx.Node, value: Any, form: Placement, mode: Mode | None = None) -> None:
        made.meta = {**node.meta, "example_value": value}
        self.made[node.name, form, mode] = made
        self.forms.setdefault((node.name, mode), []).append(form)


def local_graph(traced: Traced, sharding: Sharding, place: Place, draws: Draws) -> tuple[Traced, dict[str, str]]:
    """The graph of one rank.

    Args:
        traced: the graph of all.
        sharding: how it is shared out.
        place: this rank.
        draws: random numbers for ops on whole values, and on parts.

    Returns:
        It, whose state is of the shapes of parts; and the name of each result that has another one now.
    """
    graph = traced.graph
    local = _Local(graph, sharding, place, draws)
    for node in graph.fx.nodes:
        if node.op == "placeholder":
            local.placeholder(node)
        elif node.op == "get_attr":
            local.constant(node)
        elif node.op != "output":
            local.op(node)
    names: dict[str, str] = {}

    def result(node: torch.fx.Node) -> torch.fx.Node:
        made = local.result(node)
        names[node.name] = made.name
        return made

    local.fx.output(torch.fx.map_arg(graph.fx.output_node().args[0], result))
    renamed = {old: new for old, new in names.items() if old != new}
    found = replace(
        graph,
        ops=tuple(local.ops),
        outputs=tuple(dict.fromkeys(renamed.get(name, name) for name in graph.outputs)),
        fx=local.fx,
    )
    by_key = {graph.states[name]: form for name, form in sharding.state.items() if form != R}
    state = {
        key: _empty_part(tensor, by_key[key], sharding.axis.ranks) if key in by_key else tensor
        for key, tensor in traced.state.items()
    }
    return Traced(found, state), renamed


def _empty_part(tensor: torch.Tensor, form: Placement, ranks: int) -> torch.Tensor:
    """A part without values: what stands for it in analyses."""
    part = torch.empty(form.local(tuple(tensor.shape), ranks), dtype=tensor.dtype, device="meta")
    return torch.nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else part
