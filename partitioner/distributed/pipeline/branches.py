"""Branches of a stage on ranks of their own: each runs some of its ops, holds what these use, and passes on what others read.

    x ─┬─ tower a ──┐          rank 0   x, tower a, share a, c = a + b', deliver c
       └─ tower b ── c         rank 1   x, tower b, share b,             deliver c

Who runs what is planned as for devices of one process, as the same problem. Results are delivered to all ranks, which go on
alike; a value passes when the first op of another rank needs it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import torch

from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.part import part_of
from partitioner.distributed.pipeline.passing import deliver, fan, share, token
from partitioner.distributed.pipeline.staying import can_pass, with_makers
from partitioner.distributed.traced.example import meta_of
from partitioner.errors import PlacementError
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.access import CHECKED, LATER, SENT, Access
from partitioner.ir.graph import NOTHING, Graph, Op
from partitioner.ir.machine import Device, Link, Machine
from partitioner.planner.coarsen import coarsen
from partitioner.planner.constraints import Constraints, constrain
from partitioner.planner.cost import estimate
from partitioner.planner.policies import decided
from partitioner.planner.policies.list import List
from partitioner.planner.policies.spread import Spread
from partitioner.planner.pose import pose

IDLE = 0.1
"""The part of an even share of the work below which a rank of the axis counts as left out."""


def owners_of(traced: Traced, ranks: int, device: Device, first: Collection[str] = ()) -> dict[str, int]:
    """The rank of each op.

    Args:
        traced: what a stage runs.
        ranks: along the axis.
        device: what each computes with.
        first: keys of state whose users are to be on the first rank, for other stages share it.
    """
    graph = _unordered(traced.graph)
    rules = sharing_a_rank(traced, first)
    devices = tuple(replace(device, name=f"branch {rank}", lanes=1) for rank in range(min(ranks, len(graph.ops))))
    free = tuple(Link(one.name, two.name, inf, 0.0) for one in devices for two in devices if one is not two)
    for links in ((), free):  # with free links where it does not pay to pass anything, for it was asked for
        machine = Machine(devices, links)
        costs = estimate(graph, machine, traced.state_metas)
        tasks = coarsen(graph, costs, rules, grain=0.0)
        found = decided(pose(tasks, costs, machine, rules, "latency", None), Spread() if links else List())
        owner = {op: found.lane[task.name] for task in tasks.tasks for op in task.ops}
        seconds = [sum(costs.op_time(op, device) for op, rank in owner.items() if rank == each) for each in range(ranks)]
        if min(seconds) > IDLE * sum(seconds) / ranks:
            break
    return owner


def _unordered(graph: Graph) -> Graph:
    """The graph without the order of what is sent, for each rank of this axis sends to others."""
    free = (tuple(access for access in op.accesses if access.resource not in (SENT, LATER, CHECKED)) for op in graph.ops)
    return replace(graph, ops=tuple(replace(op, accesses=accesses) for op, accesses in zip(graph.ops, free, strict=True)))


def owners_by_stage(traced: Traced, cut: Cut, ranks: int, device: Device) -> tuple[dict[str, int], ...]:
    """The rank of each op of each stage, as `owners_of`."""
    parts = (part_of(traced, cut, number) for number in range(cut.count))
    return tuple(owners_of(part.traced, ranks, device, set(cut.ties)) for part in parts)


def sharing_a_rank(traced: Traced, first: Collection[str] = ()) -> Constraints:
    """What shares a rank: users of one parameter, of a storage that is written, and of a value that is no tensor.

    Args:
        traced: what a stage runs.
        first: as for `owners_of`.
    """
    graph = _unordered(traced.graph)
    found = constrain(graph, (), (), traced.state_metas, {})
    groups = with_makers(graph, found)
    for op in graph.ops:
        if not op.tensor:
            groups.union(found.group[op.name], *(found.group[name] for name in op.inputs if name in graph.by_name))
    pinned = {groups[found.group[op.name]]: "branch 0" for op in graph.ops if set(op.state) & set(first)}
    return Constraints({op: groups[group] for op, group in found.group.items()}, pinned)


@dataclass(eq=False)
class _Branch:
    """Writes the graph of one rank.

    Attributes:
        at: the node of each value that this rank has, by the name of the value.
        shared: the values that have passed to all.
        storages: that a node's value may share, by the node's name.
        last: the token, once there is one.
    """

    graph: Graph
    owner: Mapping[str, int]
    rank: int
    group: str
    device: torch.device
    fx: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    ops: list[Op] = field(default_factory=list)
    at: dict[str, torch.fx.Node] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    storages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    last: torch.fx.Node | None = None

    def placeholder(self, node: torch.fx.Node, wanted: bool) -> None:
        """An argument; of state, only what ops of this rank use."""
        if wanted:
            self.at[node.name] = self.fx.node_copy(node)
            self.storages[node.name] = (node.name,)

    def input(self, node: torch.fx.Node) -> None:
        """An argument that needs a gradient: all of its readers' gradients are its own."""
        name = node.name
        self.at[name] = self._exchange(fan, node, (self.at[name], self.group), (name,), shares=(name,))

    def op(self, node: torch.fx.Node) -> None:
        """An op, on its owner; on the others nothing, but that they take part in passing what it reads."""
        here = self.owner[node.name]
        for source in node.all_input_nodes:
            if source.name in self.owner and self.owner[source.name] != here and source.name not in self.shared:
                self.shared.add(source.name)
                self._pass(share, source)
        if here != self.rank:
            return
        self.at[node.name] = self.fx.node_copy(node, lambda source: self.at[source.name])
        known = self.graph.by_name[node.name]
        names = {name: self.at[name].name for name in known.inputs if name in self.at}
        moved = {storage for old, new in names.items() if old != new for storage in self.storages[new]}
        storages = {*known.storages, *(moved if set(known.storages) != {known.name} else ())}
        self.storages[node.name] = tuple(sorted(storages))
        self.ops.append(
            replace(
                known,
                inputs=tuple(dict.fromkeys(names.get(name, name) for name in known.inputs)),
                accesses=tuple(sorted({*known.accesses, *map(Access, moved)})),
                storages=self.storages[node.name] if known.tensor else (),
            )
        )

    def result(self, node: torch.fx.Node) -> torch.fx.Node:
        """A result, from its owner to all."""
        return self._pass(deliver, node) if node.name in self.owner else self.at[node.name]

    def _pass(self, how: Any, node: torch.fx.Node) -> torch.fx.Node:
        """A value from its owner to all; its owner goes on with its own.

        Raises:
            PlacementError: none of the others could make room for it.
        """
        value, owner = node.meta["example_value"], self.owner[node.name]
        if not can_pass(value):
            raise PlacementError(
                f"the model returns {node.name}, whose sizes depend on data ({self.graph.by_name[node.name].where}), and all "
                "ranks of a branch axis get results: return a mask in place of what is picked out, or take other axes of the "
                "mesh"
            )
        here = owner == self.rank
        mine = self.at[node.name] if here else None
        rest = ((tuple(value.shape), value.dtype, self.device, value.requires_grad), owner, here, self.group)
        made = self._exchange(how, node, (mine, *rest), (node.name,) if here else ())
        if not here and how is share:
            self.at[node.name] = made
        return made

    def _exchange(
        self, how: Any, node: torch.fx.Node, rest: tuple[Any, ...], reads: Iterable[str], shares: tuple[str, ...] = ()
    ) -> torch.fx.Node:
        """Something that all ranks do together, with the token in it."""
        value = node.meta["example_value"]
        with value.fake_mode:
            empty = torch.zeros(0, requires_grad=value.requires_grad)
        if self.last is None:
            self.last = self._call("token", token, (), empty, ())
        name, inputs = f"{node.name}_{how.__name__}", (self.last.name, *(self.at[each].name for each in reads))
        pair = self._call(name, how, (self.last, *rest), (value, empty), inputs, shares, sends=True)
        made = self._call(f"{name}_value", operator.getitem, (pair, 0), value, (pair.name,), (pair.name, *shares))
        self.last = self._call(f"{name}_token", operator.getitem, (pair, 1), empty, (pair.name,), (pair.name,))
        return made

    def _call(
        self,
        name: str,
        function: Any,
        args: tuple[Any, ...],
        value: Any,
        inputs: tuple[str, ...],
        shares: tuple[str, ...] = (),
        sends: bool = False,
    ) -> torch.fx.Node:
        """A new op; one that shares the storage of the first of its inputs alone makes none of its own."""
        made = self.fx.create_node("call_function", function, args, name=name)
        made.meta = {"example_value": value}
        tensors = value if isinstance(value, tuple) else (value,)
        view = function is operator.getitem
        own = () if view else (made.name,)
        self.storages[made.name] = tuple(sorted({*own, *(storage for each in shares for storage in self.storages[each])}))
        touched = {Access(storage) for each in inputs for storage in self.storages[each]} | {Access(each, True) for each in own}
        touched |= {Access(SENT, True), Access(LATER, True)} if sends else set()
        self.ops.append(
            Op(
                name=made.name,
                target=function.__name__,
                inputs=inputs,
                accesses=tuple(sorted(touched)),
                storages=self.storages[made.name],
                outputs=tuple(map(meta_of, tensors)),
                work=NOTHING,
            )
        )
        return made


def branch_of(traced: Traced, owner: Mapping[str, int], rank: int, group: str, device: torch.device) -> Traced:
    """What one rank runs of a stage.

    Args:
        traced: the whole stage.
        owner: the rank of each op.
        rank: this one.
        group: the name that torch.distributed has for the ranks of the axis.
        device: where this rank computes; the graph may be of a model on another one, or on meta.

    Returns:
        Its graph, whose results are those of the whole stage, in the same order.
    """
    graph = traced.graph
    mine = {key for op in graph.ops if owner[op.name] == rank for key in op.state}
    branch = _Branch(graph, owner, rank, group, device)
    nodes = list(graph.fx.nodes)
    for node in nodes:
        if node.op == "placeholder":
            branch.placeholder(node, graph.states.get(node.name) in mine or node.name not in graph.states)
    for node in nodes:
        if node.op == "placeholder" and node.name not in graph.states and node.meta["example_value"].requires_grad:
            branch.input(node)
    for node in nodes:
        if node.op == "get_attr":
            branch.at[node.name] = branch.fx.node_copy(node)
        elif node.op.startswith("call_"):
            branch.op(node)
    results = [branch.result(node) for node in graph.fx.output_node().args[0]]  # type: ignore[union-attr,arg-type]
    branch.fx.output(tuple(results))
    states = {name: key for name, key in graph.states.items() if key in mine}
    local = replace(
        graph,
        name=f"{graph.name} branch {rank}",
        ops=tuple(branch.ops),
        outputs=tuple(node.name for node in results),
        fx=branch.fx,
        arguments=tuple(node.name for node in branch.fx.find_nodes(op="placeholder")),
        states=states,
    )
    return Traced(local, {key: tensor for key, tensor in traced.state.items() if key in mine})
