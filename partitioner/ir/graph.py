"""What a model does: ops in program order, what each one touches, and the DAG that follows from it.

A *resource* is anything two ops can disagree about: a storage (named after the op, input or parameter that made it) or a
token such as `RNG`. `ANY` stands for every resource at once and is what an op of unknown effects writes.

**The one hazard rule.** Two accesses to one resource, at least one of them a write, keep their program order. Read after
write, write after read and write after write all follow from it; in-place ops, views, buffers, random generators and
modules that are called twice need no rule of their own.

    graph Toy
      in  x
      a   = linear(x)           r:x r:a.weight w:a          float32[2, 4]
      r   = relu_(a)            w:a                         float32[2, 4]
      out r
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import networkx as nx
import torch
from torch.utils._pytree import TreeSpec

ANY = "*"
RNG = "rng"
HOOKS = "hooks"
TOKENS = frozenset({ANY, RNG, HOOKS})
"""Resources that are no storage: everything, the random generator, and whatever the hooks of a user change."""


@dataclass(frozen=True, order=True)
class Access:
    """One op's use of one resource."""

    resource: str
    write: bool = False

    def __str__(self) -> str:
        return f"{'w' if self.write else 'r'}:{self.resource}"


@dataclass(frozen=True)
class TensorMeta:
    """Shape, dtype and size in bytes of one tensor, as seen with the example inputs."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Op:
    """One node of the traced program.

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
        flops: floating-point operations, ``None`` without example inputs.
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
    flops: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the tensors in its result."""
        return sum(meta.bytes for meta in self.outputs)

    @property
    def where(self) -> str:
        """Module path and source line, for error messages."""
        return " at ".join(part for part in (self.path and f"in {self.path}", self.source) if part)

    def __str__(self) -> str:
        touched = " ".join(map(str, self.accesses))
        metas = ", ".join(map(str, self.outputs))
        return f"{self.name} = {self.target}({', '.join(self.inputs)})  {touched}  {metas}".rstrip()


@dataclass(frozen=True, order=True)
class Read:
    """An attribute that the model's forward read while it was traced: the module's qualified name, and the attribute's."""

    path: str
    name: str


@dataclass(frozen=True)
class Signature:
    """How a call's arguments become graph inputs, and graph outputs become the call's result.

    The tensor leaves of ``(args, kwargs)`` are the graph's inputs, in order; every other leaf was burned in by tracing and
    is a guard. ``accepts`` is asked once for every new set of shapes. ``reads`` are attributes of the model that were
    burned in, and ``modes`` whether the caller's modes were.
    """

    in_spec: TreeSpec
    constants: tuple[tuple[int, Any], ...]
    out_spec: TreeSpec
    accepts: Callable[[Sequence[torch.Tensor]], str | None] = field(default=lambda tensors: None)
    reads: tuple[Read, ...] = ()
    modes: bool = False


@dataclass(frozen=True, eq=False)
class Graph:
    """A traced model. Frozen: every stage makes a new value instead of editing one.

    Args:
        name: of the model's class.
        ops: in program order.
        inputs: names of the graph's inputs, with their metadata where example inputs were given.
        outputs: the names of the ops and inputs that the model returns, each once.
        fx: the traced program itself; its nodes carry the names of `ops`.
        constants: tensors and graph modules that tracing lifted out of the model, by the name that `fx` calls them.
        signature: the calling convention.
        frontend: which front end traced it.
        notes: what a front end or fallback had to give up, for reports.
        observed: whether effects were observed on example inputs, or come from the static table.
    """

    name: str
    ops: tuple[Op, ...]
    inputs: tuple[tuple[str, TensorMeta | None], ...]
    outputs: tuple[str, ...]
    fx: torch.fx.Graph
    signature: Signature
    constants: dict[str, Any] = field(default_factory=dict)
    frontend: str = ""
    notes: tuple[str, ...] = ()
    observed: bool = False

    @cached_property
    def by_name(self) -> dict[str, Op]:
        """Op by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def writes_inputs(self) -> bool:
        """Whether an op writes a storage that came in with the call. Then it matters which inputs share one."""
        given = {name for name, _ in self.inputs}
        return any(access.write and access.resource in given for op in self.ops for access in op.accesses)

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

    def __str__(self) -> str:
        lines = [f"graph {self.name}"]
        lines += [f"  in  {name}{'' if meta is None else f'  {meta}'}" for name, meta in self.inputs]
        lines += [f"  {op}" for op in self.ops]
        lines.append(f"  out {', '.join(self.outputs)}")
        return "\n".join(lines)


def hazards(program: Iterable[tuple[str, Sequence[Access]]]) -> Iterator[tuple[str, str]]:
    """The pairs that the one hazard rule orders, for ``(name, accesses)`` in program order.

    Pairs that follow from others are left out: a write is ordered after the reads since the last write and after that
    write, a read after the last write.

    Example:
        >>> r, w = Access("x"), Access("x", write=True)
        >>> list(hazards([("a", [w]), ("b", [r]), ("c", [r]), ("d", [w])]))
        [('a', 'b'), ('a', 'c'), ('a', 'd'), ('b', 'd'), ('c', 'd')]
    """
    writer: dict[str, str] = {}
    readers: defaultdict[str, list[str]] = defaultdict(list)
    fence = ""
    since_fence: list[str] = []
    for name, accesses in program:
        before: dict[str, None] = {}
        modes = {access.resource: access.write for access in sorted(accesses)}
        if fence:
            before[fence] = None
        if ANY in modes:
            before.update(dict.fromkeys(since_fence))
            fence, since_fence = name, []
            writer.clear()
            readers.clear()
        else:
            for resource, write in modes.items():
                if resource in writer:
                    before[writer[resource]] = None
                if write:
                    before.update(dict.fromkeys(readers.pop(resource, ())))
                    writer[resource] = name
                else:
                    readers[resource].append(name)
            since_fence.append(name)
        for earlier in before:
            yield earlier, name


def fill(arguments: Any, value: Callable[[torch.fx.Node], Any]) -> Any:
    """Arguments of a torch.fx node with values in the nodes' places.

    Lists and dicts come out as plain ones: a function may change those that it is given, and torch.fx's refuse that.
    """
    if isinstance(arguments, torch.fx.Node):
        return value(arguments)
    if isinstance(arguments, tuple):
        items = [fill(item, value) for item in arguments]
        return type(arguments)(*items) if hasattr(arguments, "_fields") else tuple(items)
    if isinstance(arguments, list):
        return [fill(item, value) for item in arguments]
    if isinstance(arguments, dict):
        return {key: fill(item, value) for key, item in arguments.items()}
    if isinstance(arguments, slice):
        return slice(*(fill(part, value) for part in (arguments.start, arguments.stop, arguments.step)))
    return arguments


def conflict(one: Iterable[Access], other: Iterable[Access]) -> str | None:
    """The resource on which two sets of accesses conflict, or ``None``.

    Example:
        >>> conflict([Access("x")], [Access("x", write=True)])
        'x'
        >>> conflict([Access("x")], [Access("x")]) is None
        True
    """
    mine = {access.resource: access.write for access in sorted(one)}
    theirs = {access.resource: access.write for access in sorted(other)}
    if (ANY in mine and theirs) or (ANY in theirs and mine):
        return ANY
    for resource, write in mine.items():
        if resource in theirs and (write or theirs[resource]):
            return resource
    return None
