"""From the example of one copy to the example of one of the ranks that share it, and to the part of each parameter it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from partitioner.distributed.tensor.collectives import cut, from_first, group_named
from partitioner.distributed.tensor.draws import Draws
from partitioner.distributed.tensor.local import Place, local_graph
from partitioner.distributed.tensor.losses import exchange_seconds, form_of_logits
from partitioner.distributed.tensor.portion import Portion
from partitioner.distributed.tensor.ways import Ways, blocks_in, inputs_of, rules_of, tensors_of, whole_rule
from partitioner.distributed.traced.example import Example, differentiable
from partitioner.errors import TraceError
from partitioner.frontend.analysis.build import Traced
from partitioner.frontend.analysis.held import weight_of
from partitioner.ir.access import ANY, is_storage
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Device, Machine
from partitioner.ir.optimizer import optimizer_named
from partitioner.ir.sharding import P, Placement, R
from partitioner.ir.shared import Axis, ShardedOp, Sharding, Whole
from partitioner.model.state import all_state
from partitioner.model.storage import tensor_bytes
from partitioner.planner.cost import estimate
from partitioner.planner.sharding import shared_out
from partitioner.spec.spec import Spec


@dataclass(frozen=True, eq=False)
class Shards:
    """Which part of each parameter and buffer a rank of a tensor axis holds.

    Args:
        sharding: of the whole graph.
        forms: by the model's key, of those of which each rank has a part.
        place: this rank.
        draws: its random numbers.
    """

    sharding: Sharding
    forms: Mapping[str, Placement]
    place: Place
    draws: Draws

    @property
    def ranks(self) -> int:
        """How many share a copy."""
        return self.sharding.axis.ranks

    def part(self, key: str, tensor: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        """A rank's part of a whole tensor, in memory of its own; this rank's, if no other is meant."""
        form = self.forms.get(key)
        if form is None:
            return tensor
        found = cut(tensor, form.dim, form.blocks, self.ranks, self.place.rank if rank is None else rank)
        # a single row would keep the stride of the whole, with which DDP cannot send it
        return found.clone(memory_format=torch.contiguous_format if len(found) == 1 else torch.preserve_format)

    def begin(self, key: str, held: torch.Tensor, whole: torch.Tensor) -> None:
        """Give every rank of the axis what the first has, or its part of that.

        Args:
            key: the model's.
            held: what this rank has, which is written.
            whole: the model's tensor; that of the first rank counts.
        """
        group = group_named(self.place.group)
        if key not in self.forms:
            from_first(held, group)
            return
        ranks = range(self.ranks if self.place.rank == 0 else 0)
        parts = [self.part(key, whole.detach(), rank).to(held.device) for rank in ranks]
        dist.scatter(held, parts or None, group=group, group_src=0)

    def read(self, names: Sequence[str], stored: Any) -> torch.Tensor | None:
        """This rank's part of a tensor in a safetensors file, of which no more is read; ``None`` for one that it holds whole.

        Args:
            names: the model's keys for it.
            stored: of safetensors, a tensor that can be sliced.
        """
        form = next((self.forms[name] for name in names if name in self.forms), None)
        if form is None:
            return None
        each, starts = form.runs(stored.get_shape()[form.dim], self.ranks, self.place.rank)
        return torch.cat([stored[(*[slice(None)] * form.dim, slice(start, start + each))] for start in starts], form.dim)

    def start_step(self) -> None:
        """Agree on the random numbers of a step, if ops draw any; the first rank's generator decides."""
        if self.draws.used:
            seed = (torch.randint(2**62, ()) if self.place.rank == 0 else torch.tensor(0)).to(self.draws.device)
            dist.broadcast(seed, group=group_named(self.place.group), group_src=0)
            self.draws.start(int(seed))

    def portion(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """What a checkpoint knows of a tensor that this rank holds under a key."""
        return Portion(tensor, self.forms[key], self.ranks, self.place.rank) if key in self.forms else tensor

    def under_all_keys(self, model: nn.Module) -> Shards:
        """The same, under every key that the model's state has for a tensor."""
        known, state = model.state_dict(keep_vars=True), all_state(model)
        forms = {id(state[key]): form for key, form in self.forms.items() if key in state}
        return replace(self, forms={key: forms[id(tensor)] for key, tensor in known.items() if id(tensor) in forms})


def shared(example: Example, sharding: Sharding, place: Place, device: torch.device) -> tuple[Example, Shards]:
    """The example of one rank.

    Args:
        example: of a whole copy.
        sharding: how it is shared out.
        place: the rank.
        device: on which it draws random numbers.
    """
    graph = example.traced.graph
    draws = Draws(device, place.rank)
    traced, renamed = local_graph(example.traced, sharding, place, draws)
    leaves = tuple((renamed.get(name, name), value) for name, value in example.leaves)
    forms = {graph.states[name]: form for name, form in sharding.state.items() if form != R}
    local = replace(example, traced=traced, leaves=leaves, differentiable=differentiable(traced.graph))
    return local, Shards(sharding, forms, place, draws)


def sharding_of(traced: Traced, axis: Axis, device: Device, spec: Spec) -> Sharding:
    """How a graph is best shared out.

    Args:
        traced: the graph of a whole copy.
        axis: the ranks.
        device: what each computes with.
        spec: says which optimizer there will be.

    Raises:
        TraceError: sizes depend on data.
    """
    graph = traced.graph
    refuse_open_sizes(graph)
    costs = estimate(graph, Machine((device,)), traced.state_metas)
    ways, kept = Ways(axis.ranks, blocks_in(graph.fx)), on_wholes(traced)
    ops, values = [], {}
    for node in graph.fx.nodes:
        tensors = tensors_of(node)
        size = sum(map(tensor_bytes, tensors))
        grad = any(tensor.requires_grad for tensor in tensors)
        if node.op == "placeholder":
            values[node.name] = _given(traced, node.name, size, grad, spec)
        elif node.op.startswith("call_"):
            values[node.name] = Whole(size, grad, fixed=not isinstance(node.meta.get("example_value"), torch.Tensor))
            seconds = costs.op_time(node.name, device, device.threads_per_lane)
            rules = (whole_rule(node, seconds),) if node.name in kept else rules_of(ways, node, seconds)
            if form_of_logits(node, inputs_of(node)) is not None:
                sent = exchange_seconds(inputs_of(node), axis)
                rules = tuple(replace(rule, seconds=rule.seconds + sent * (rule.output == P)) for rule in rules)
            ops.append(ShardedOp(node.name, tuple(source.name for source in inputs_of(node)), rules))
    results = [node.name for node in graph.fx.output_node().all_input_nodes if tensors_of(node)]
    return shared_out(ops, values, results, axis)


def refuse_open_sizes(graph: Graph) -> None:
    """Refuse a graph with tensors whose sizes depend on data: which parts of them ranks have is not known ahead.

    Raises:
        TraceError: names the first op that gives one.
    """
    for node in graph.fx.nodes:
        if any(free_unbacked_symbols(tensor) for tensor in tensors_of(node)):
            raise TraceError(
                f"{node.name} gives a tensor whose sizes depend on data ({graph.by_name[node.name].where}), and a tensor axis "
                "needs to know them: use a mask in place of what is picked out, or other axes of the mesh"
            )


def _given(traced: Traced, name: str, size: int, grad: bool, spec: Spec) -> Whole:
    """An argument of the call, or a parameter with all that is kept for it."""
    key = traced.graph.states.get(name)
    if key is None:
        return Whole(size, grad)
    written = f"self.{key}" in traced.graph.written
    weight = weight_of(traced.state[key], grad, optimizer_named(spec.optimizer))
    return Whole(size, grad, fixed=written, state=True, held=weight.total, matrix=traced.state[key].dim() > 1)


def on_wholes(traced: Traced) -> set[str]:
    """The ops that work on whole values, whatever ways they have."""
    return whole_only(traced.graph) | unlearnt(traced)


def unlearnt(traced: Traced) -> set[str]:
    """The ops in which no parameter has a part, such as masks and tables of positions: little work, and wanted everywhere."""
    learnt: set[str] = set()
    for op in traced.graph.ops:
        if any(isinstance(traced.state[key], nn.Parameter) for key in op.state) or learnt.intersection(op.inputs):
            learnt.add(op.name)
    return {op.name for op in traced.graph.ops} - learnt


def whole_only(graph: Graph) -> set[str]:
    """The ops that must work on whole values: of unknown effects, or on what one op writes and another one reads later."""
    place = graph.position
    owners: dict[str, list[str]] = {}
    for op in graph.ops:
        for access in op.accesses:
            owners.setdefault(access.resource, []).append(op.name)
    found: set[str] = set()
    for op in graph.ops:
        for access in op.accesses:
            if not access.write or access.resource == op.name:
                continue
            if access.resource == ANY:
                found.add(op.name)
            elif is_storage(access.resource) and not _in_a_row(graph, op.name, access.resource, place):
                found.update(owners[access.resource])
    return found


def _in_a_row(graph: Graph, writer: str, resource: str, place: Mapping[str, int]) -> bool:
    """Whether nothing that shares a storage is read in an older state after a write, so that forms of it may be apart."""
    if resource.startswith("self."):
        return sum(any(access.resource == resource for access in op.accesses) for op in graph.ops) == 1
    if resource not in place:
        return False  # an argument of the call, which is the caller's
    older = {op.name for op in graph.ops if resource in op.storages and place[op.name] < place[writer]}
    if older & set(graph.outputs):
        return False
    return not any(older & set(op.inputs) and place[op.name] > place[writer] for op in graph.ops)
