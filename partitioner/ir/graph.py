"""What a model does: ops in program order, what each one touches, and the DAG that follows from it.

graph Toy
  in  x
  a   = linear(x)           r:x r:a.weight w:a          float32[2, 4]
  r   = relu_(a)            w:a                         float32[2, 4]
  out r
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import networkx as nx

from partitioner.ir.access import RNG, Access, hazards
from partitioner.ir.mode import Mode

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorMeta:
    """Shape, dtype and size in bytes of one tensor, as seen with the example inputs."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class StateMeta:
    """A parameter, buffer or constant: which storage it is in, and sizes in bytes.

    Args:
        storage: what tells its storage from others.
        bytes: its own size, which an op that uses it reads.
        kept: the size of its storage, which it keeps alive.
        elements: how many of its elements the storage holds.
    """

    storage: int
    bytes: int
    kept: int
    elements: int


class Work(NamedTuple):
    """How much an op computes.

    Args:
        flops: floating-point operations, of matrix products above all.
        kernels: what it comes down to, views not counted: hundreds in a recurrent layer.
        touched: bytes that these read and write in all.
        cycles: of one core, where a kernel on a CPU takes elements one by one.
        drawn: cycles of the generator of random numbers, which one thread has at a time.
    """

    flops: int = 0
    kernels: int = 0
    touched: int = 0
    cycles: int = 0
    drawn: int = 0

    def shared(self, ranks: int) -> Work:
        """The part of one of several ranks that divide it."""
        return self._replace(flops=self.flops // ranks, cycles=self.cycles // ranks, drawn=self.drawn // ranks)

    def also(self, other: Work) -> Work:
        """This, and another."""
        return Work(*(one + more for one, more in zip(self, other, strict=True)))


NOTHING = Work()

LANDED = "landed"
"""The target of ops that bring results to where Python goes on after a graph. No pin speaks of them."""


@dataclass(frozen=True)
class Op:
    """One node of the traced graph.

    Args:
        name: unique in the graph, and a Python identifier.
        target: what is called, for people: ``conv2d``, ``layer1.0.conv1``.
        inputs: names of the ops and graph inputs whose values it takes, in order, each once.
        accesses: every resource that it reads or writes, the storages of its inputs and outputs included.
        storages: the storages that its result may share; more than its own name for views and in-place ops.
        state: parameters, buffers and constants that it uses, by qualified name.
        path: the module that it was called in, ``""`` for the root.
        source: ``file:line`` in the user's code, ``""`` where the front end does not say.
        outputs: metadata of the tensors in its result; empty without example inputs.
        tensor: whether its result holds a tensor (or may hold one); sizes, devices and dtypes do not.
        work: how much it computes, ``None`` without example inputs.
        mode: grad mode, autocast and inference mode, where they are not those that the graph starts under.
        exchange: seconds for what passes between the ranks of a job in it.
        layer: the layer around it whose parameters torch may take in one op in another mode; ``""`` if there is none.
    """

    name: str
    target: str
    inputs: tuple[str, ...] = ()
    accesses: tuple[Access, ...] = ()
    storages: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    path: str = ""
    source: str = ""
    outputs: tuple[TensorMeta, ...] = ()
    tensor: bool = True
    work: Work | None = None
    mode: Mode | None = None
    exchange: float = 0.0
    layer: str = ""

    @property
    def flops(self) -> int | None:
        """Floating-point operations, ``None`` without example inputs."""
        return None if self.work is None else self.work.flops

    @property
    def bytes(self) -> int:
        """Bytes of the tensors in its result."""
        return sum(meta.bytes for meta in self.outputs)

    @property
    def where(self) -> str:
        """Module path and source line, for error messages."""
        return " at ".join(part for part in (self.path and f"in {self.path}", self.source) if part)

    @property
    def shown(self) -> str:
        """The call and where it comes from, for error messages."""
        return f"{self.name} = {self.target}(...) {self.where}".rstrip()

    def __str__(self) -> str:
        touched = " ".join(map(str, self.accesses))
        metas = ", ".join(map(str, self.outputs))
        return f"{self.name} = {self.target}({', '.join(self.inputs)})  {touched}  {metas}".rstrip()


@dataclass(frozen=True, eq=False)
class Graph:
    """A traced model. Frozen: every stage makes a new value instead of editing one.

    Args:
        name: of the model's class.
        ops: in program order.
        inputs: names of the graph's inputs, with their metadata where example inputs were given.
        outputs: the names of the ops and inputs that the model returns, each once.
        fx: the traced graph itself; its nodes carry the names of `ops`.
        arguments: the placeholders of `fx`, in the order in which it is called with their values.
        states: the qualified name of each argument that is a parameter, a buffer or another tensor of the model.
        bodies: graph modules that ops call, such as the branches of a ``cond``, by the name that `fx` has for them.
        leaves: the modes in which it leaves the caller's thread, if they are not those that it starts under.
        tracer: which tracer gave it.
        device: torch device on which it was traced; ``""`` where that is not one.
        notes: what a front end or fallback had to give up, for reports.
        observed: whether effects were observed on example inputs, or come from the static table.
    """

    name: str
    ops: tuple[Op, ...]
    inputs: tuple[tuple[str, TensorMeta | None], ...]
    outputs: tuple[str, ...]
    fx: torch.fx.Graph
    arguments: tuple[str, ...] = ()
    states: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, Any] = field(default_factory=dict)
    leaves: Mode | None = None
    tracer: str = ""
    device: str = ""
    notes: tuple[str, ...] = ()
    observed: bool = False

    @cached_property
    def by_name(self) -> dict[str, Op]:
        """Op by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def position(self) -> dict[str, int]:
        """The place of each op in program order, by name."""
        return {op.name: number for number, op in enumerate(self.ops)}

    @cached_property
    def nodes(self) -> dict[str, torch.fx.Node]:
        """The node of each op and argument, by name."""
        return {node.name: node for node in self.fx.nodes}

    @cached_property
    def metas(self) -> dict[str, TensorMeta | None]:
        """The metadata of every value, by name: of inputs, and of what ops give; of several tensors the first."""
        return dict(self.inputs) | {op.name: op.outputs[0] if op.outputs else None for op in self.ops}

    @cached_property
    def written(self) -> frozenset[str]:
        """Every resource that an op writes."""
        return frozenset(access.resource for op in self.ops for access in op.accesses if access.write)

    @cached_property
    def given(self) -> tuple[str, ...]:
        """The resource of each argument."""
        return tuple(f"self.{self.states[name]}" if name in self.states else name for name in self.arguments)

    @cached_property
    def written_arguments(self) -> tuple[int, ...]:
        """Positions of the arguments whose storage an op writes; of those that share one, the first."""
        return tuple(position for position, resource in enumerate(self.given) if resource in self.written)

    @cached_property
    def by_memory(self) -> tuple[Op, ...]:
        """The ops for which it matters in which memory a tensor lies: those that give results, and that take it by strides."""
        results = {*self.outputs}
        return tuple(op for op in self.ops if op.name in results or op.target == "as_strided")

    @cached_property
    def recorded(self) -> dict[str, Mode]:
        """By value, the mode of an op that makes or reads it and records gradients, as the call may not. So are copies."""
        modes = ((name, op.mode) for op in self.ops for name in (op.name, *op.inputs))
        return {name: mode for name, mode in modes if mode is not None and mode.grad}

    @cached_property
    def edges(self) -> dict[tuple[str, str], str]:
        """Every ordered pair of ops that must keep its order, and the reason: ``data``, ``hazard`` or ``random``.

        ``random`` pairs share nothing but a random generator. On an accelerator that orders their issue, not their kernels.
        """
        drawing = ((op.name, [access for access in op.accesses if access.resource == RNG]) for op in self.ops)
        touching = ((op.name, [access for access in op.accesses if access.resource != RNG]) for op in self.ops)
        found = dict.fromkeys(hazards(drawing), "random")
        found.update(dict.fromkeys(hazards(touching), "hazard"))
        known = self.by_name
        for op in self.ops:
            for source in op.inputs:
                if source in known:
                    found[source, op.name] = "data"
        return found

    @cached_property
    def dag(self) -> nx.DiGraph[str]:
        """Ops as nodes; edges carry ``kind``: ``data``, ``hazard`` or ``random``."""
        dag: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        dag.add_nodes_from(op.name for op in self.ops)
        dag.add_edges_from((source, target, {"kind": kind}) for (source, target), kind in self.edges.items())
        return dag

    def last_uses(self, ops: Sequence[str], kept: Collection[str], given: Iterable[str] = ()) -> dict[str, list[str]]:
        """For each of some ops, in program order: what they make, or are given, that nothing after it among them uses.

        Args:
            ops: their names.
            kept: what they make, and somebody else uses.
            given: what others have made, and nobody else uses.
        """
        own = {*set(ops).difference(kept), *given}
        last = {name: op for op in ops for name in (op, *self.by_name[op].inputs) if name in own}
        found: dict[str, list[str]] = {op: [] for op in ops}
        for name, op in last.items():
            found[op].append(name)
        return found

    def __str__(self) -> str:
        lines = [f"graph {self.name}"]
        lines += [f"  in  {name}{'' if meta is None else f'  {meta}'}" for name, meta in self.inputs]
        lines += [f"  {op}" for op in self.ops]
        lines.append(f"  out {', '.join(self.outputs)}")
        return "\n".join(lines)
