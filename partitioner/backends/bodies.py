"""Which ops may be called as one function, and that function: a task's ops without the interpreter between them.

    def t3(x, w):              relu  = t3(x, w)          compiled when it is first called, on the caller's thread
        y = linear(x, w)
        return relu(y)

A compiler is given ops of torch alone, on tensors of known sizes, or of open ones if it can do with those. What is something
else, writes to the model's state in a way of its own, or passes what is no tensor, is called as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from partitioner.backends.nodes import retarget
from partitioner.errors import PartitionerError
from partitioner.ir.access import ANY, LATER, RNG, SENT, Access, is_storage
from partitioner.ir.graph import Graph, Op
from partitioner.ir.plan import Plan
from partitioner.ir.task import Task, TaskGraph
from partitioner.model.node import target_name

Compile = Callable[..., Callable[..., Any]]
"""Makes a function of a graph module, given what it is first called with and, where sizes are open, the same of other sizes."""

Refused = Callable[[TaskGraph], set[str]]
"""Tells which ops must leave the tasks that they are in."""


@dataclass(frozen=True)
class Compiler:
    """What makes functions of tasks.

    Args:
        compile: makes one.
        drawing: names of the functions of torch that it lets draw the random numbers that eager draws; ``None`` for all.
    """

    compile: Compile
    drawing: frozenset[str] | None = None


STATE = "state"
"""What a module's ``meta`` has the positions of those arguments under that are the model's state, and are only read."""

MADE = "made"
"""What a module's ``meta`` has the positions of those arguments under that other tasks have made."""

OPEN = "open"
"""What a module's ``meta`` has the dimensions under whose sizes are open, by the argument's position."""

LEAST_OPS = 2
"""Ops of the smallest task that is called as a function on its lane; one op is called as it is in less time."""


class CompileError(PartitionerError):
    """A task cannot be compiled; the message is the reason, without a full stop."""


@dataclass(eq=False)
class Body:
    """A task's ops as a function of its inputs.

    Args:
        module: calls them one by one.
        compile: makes something faster of it.
        inputs: the names of its arguments, values and state.
        outputs: the names of its results.
        written: positions of the arguments that it writes: running statistics and the like.
        draws: whether it draws random numbers.
        fakes: what stood for its arguments while the graph was traced.
        device: of its lane, whose generator those random numbers are from.
        ops: how many it holds.

    Attributes:
        run: what is called; ``None`` until the first call.
        reason: why it is not compiled after all.
    """

    module: torch.fx.GraphModule
    compile: Compile
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    written: frozenset[int]
    draws: bool
    fakes: tuple[Any, ...] = ()
    device: str = "cpu"
    ops: int = 0
    run: Callable[..., Any] | None = field(default=None, init=False)
    reason: str = field(default="", init=False)

    def __call__(self, *arguments: Any) -> Any:
        """The results. What fails when compiled is called op by op, where that can be, and fails with the model's error."""
        if self.run is None:
            self.prepare(arguments)
        state = torch.get_rng_state() if self.draws and self.device == "cpu" else None
        try:
            return self.run(*arguments)  # type: ignore[misc]
        except Exception:
            half = self.written or (self.draws and self.device != "cpu")  # of it has happened
            if half or self.run is self.module.forward:
                raise
        if state is not None:
            torch.set_rng_state(state)
        return self.module.forward(*arguments)

    def prepare(self, arguments: Sequence[Any]) -> None:
        """Compile, or say why that cannot be."""
        given = [value.clone() if number in self.written else value for number, value in enumerate(arguments)]
        try:
            with torch.random.fork_rng([self.device] if self.device.startswith("cuda") else [], enabled=self.draws):
                self.run = self.compile(self.module, given, *_at_other_sizes(self.fakes, given))
        except Exception as error:  # whatever a compiler may raise: the ops are called one by one then, which is right
            self.run = self.module.forward
            self.reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _at_other_sizes(fakes: Sequence[Any], given: Sequence[Any]) -> list[list[Any]]:
    """The arguments once more with twice the sizes that are open; no list where none is."""
    pairs = list(zip(fakes, given, strict=False))
    sizes = [each for fake, value in pairs for each in zip(fake.shape, value.shape, strict=True)]
    numbers = {size.node.expr: 2 * real for size, real in sizes if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol}
    if all(isinstance(size, int) for size, _ in sizes):
        return []
    shapes = [[_number(size, numbers) for size in fake.shape] for fake, _ in pairs]
    return [[_zeros(value, shape) for value, shape in zip(given, shapes, strict=True)]]


def _number(size: Any, numbers: Mapping[Any, int]) -> int:
    """A size where its symbols stand for numbers. Of what no argument has by itself nothing is known, which is an error."""
    return size if isinstance(size, int) else int(size.node.expr.xreplace(numbers))


def _zeros(value: torch.Tensor, shape: list[int]) -> torch.Tensor:
    return value if list(value.shape) == shape else value.new_zeros(shape).requires_grad_(value.requires_grad)


def uncompiled(graph: Graph, compiler: Compiler) -> Refused:
    """Tells of a graph's tasks which ops must leave those that they are in, if tasks are to be compiled."""
    nodes = graph.nodes
    never = set(graph.by_name) - _needed(graph)
    for op in graph.ops:
        if not _is_plain(op, nodes[op.name]) or _draws_otherwise(op, nodes[op.name], compiler):
            never.add(op.name)

    def refused(tasks: TaskGraph) -> set[str]:
        """Those that no task may hold, and those to or from which something would have to pass that is no tensor."""
        found = set(never)
        for task in tasks.tasks:
            own = set(task.ops)
            found.update(name for name in task.outputs if not _is_tensor(nodes[name]))
            for name in task.ops:
                if any(source.name not in own and not _is_tensor(source) for source in nodes[name].all_input_nodes):
                    found.add(name)
                if any(_is_given(access, own) for access in graph.by_name[name].accesses):
                    found.add(name)
        return found

    return refused


def _needed(graph: Graph) -> set[str]:
    """The ops that results or writes follow from. A compiler leaves out the others, with what they draw and what they raise."""
    found: set[str] = set()
    for op in reversed(graph.ops):
        writes = any(access.write and access.resource not in (op.name, RNG) for access in op.accesses)
        if op.name in graph.outputs or writes or any(user.name in found for user in graph.nodes[op.name].users):
            found.add(op.name)
    return found


def _is_given(access: Access, own: set[str]) -> bool:
    """Whether an access writes to a value that is made outside of a task, which could not be called again after a fault."""
    return (
        access.write and access.resource not in own and is_storage(access.resource) and not access.resource.startswith("self.")
    )


def bodies_of(plan: Plan, refused: Refused, compile: Compile) -> dict[str, Body]:
    """The function of each task of which there is one, by the task's name."""
    alone = refused(plan.tasks)
    return {
        task.name: _body(plan, task, compile) for task in plan.tasks.tasks if task.outputs and not alone.intersection(task.ops)
    }


def _body(plan: Plan, task: Task, compile: Compile) -> Body:
    own, graph, nodes = set(task.ops), torch.fx.Graph(), plan.graph.nodes
    read = dict.fromkeys(source.name for op in task.ops for source in nodes[op].all_input_nodes if source.name not in own)
    made = {name: graph.placeholder(f"given_{number}") for number, name in enumerate(read)}  # not "self", whatever its name
    lane = plan.machine.lanes[plan.placement.lane[task.name]]
    elsewhere = lane.torch_device if plan.graph.device not in ("", lane.torch_device) else None
    for op in task.ops:
        target, args, kwargs = retarget(nodes[op], elsewhere)
        args, kwargs = _with_numbers(nodes[op], args, kwargs)
        args, kwargs = torch.fx.node.map_arg((args, kwargs), lambda source: made[source.name])
        made[op] = graph.create_node(nodes[op].op, target, args, kwargs, name=op)
    results = tuple(made[name] for name in task.outputs)
    graph.output(results[0] if len(results) == 1 else results)
    touched = {access.resource for access in task.accesses if access.write}
    written = frozenset(number for number, name in enumerate(read) if touched.intersection(_storages(plan.graph, name)))
    module = torch.fx.GraphModule({}, graph, task.name)
    module.meta[STATE] = [number for number, name in enumerate(read) if name in plan.graph.states and number not in written]
    module.meta[MADE] = [number for number, name in enumerate(read) if name in plan.graph.by_name]
    fakes = tuple(nodes[name].meta.get("example_value") for name in read)
    module.meta[OPEN] = {number: found for number, fake in enumerate(fakes) if (found := _open(fake))}
    return Body(module, compile, tuple(read), task.outputs, written, RNG in touched, fakes, lane.torch_device, len(own))


def _open(fake: Any) -> list[int]:
    """The dimensions whose sizes are open."""
    return [dimension for dimension, size in enumerate(getattr(fake, "shape", ())) if isinstance(size, torch.SymInt)]


def _with_numbers(node: torch.fx.Node, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What a call is given, with 1 for ``True`` where that fills a tensor or is compared: TorchScript has no bool there."""
    filled = {key: kwargs[key] for key in ("value", "fill_value") if key in kwargs}
    if target_name(node) not in FILLING or not any(isinstance(value, bool) for value in (*args, *filled.values())):
        return args, kwargs
    numbers = {key: int(value) if isinstance(value, bool) else value for key, value in filled.items()}
    kind = {"dtype": node.meta["example_value"].dtype} if target_name(node) == "full" else {}
    return tuple(int(value) if isinstance(value, bool) else value for value in args), {**kwargs, **numbers, **kind}


def _storages(graph: Graph, name: str) -> tuple[str, ...]:
    """The storages of a value that a task is given."""
    if name in graph.states:
        return (f"self.{graph.states[name]}",)
    return graph.by_name[name].storages if name in graph.by_name else (name,)


def _is_plain(op: Op, node: torch.fx.Node) -> bool:
    """Whether an op is torch's own, on dense tensors, and switches nothing."""
    if op.mode is not None or any(source.op == "get_attr" for source in node.all_input_nodes):
        return False
    if any(access.resource in (ANY, LATER, SENT) for access in op.accesses):
        return False
    if any(access.write and access.resource.startswith("self.") for access in op.accesses) and not _writes_openly(node):
        return False
    values = [leaf for one in (node, *node.all_input_nodes) for leaf in tree_leaves(one.meta.get("example_value"))]
    results = tree_leaves(node.meta.get("example_value"))
    are_tensors = bool(results) and all(isinstance(leaf, torch.Tensor) for leaf in results)
    return are_tensors and is_torchs(node) and all(map(_is_dense, values))


def _draws_otherwise(op: Op, node: torch.fx.Node, compiler: Compiler) -> bool:
    """Whether an op would draw other random numbers than eager does."""
    if compiler.drawing is None or all(access.resource != RNG for access in op.accesses):
        return False
    return target_name(node) not in compiler.drawing


def _is_dense(value: Any) -> bool:
    """Whether a value is a number that is known, or a dense tensor."""
    if not isinstance(value, torch.Tensor):
        return not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    return value.layout is torch.strided


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


HOMES = frozenset(
    """torch torch.functional torch.nn.functional torch._C._nn torch._C._fft torch._C._linalg torch._C._special
    _operator""".split()
)
"""Where functions of torch come from, and operators."""

SWITCHING = frozenset(
    """requires_grad_ retain_grad set_ set_data resize_ resize_as_ rename_ rename backward tensor as_tensor from_numpy asarray
    frombuffer compile vmap cond""".split()
)
"""Of torch, but they change more than values, or make constants of what they are given."""

BESIDE_AUTOGRAD = frozenset(["linspace", "logspace", "randint_like"])
"""Of torch, and Python calls them outside of autograd, for ATen's own op wants gradients that it has no derivative for."""


FILLING = frozenset(
    "__eq__ __ne__ eq fill_ full full_like index_fill index_fill_ masked_fill masked_fill_ ne new_full scatter scatter_".split()
)
"""What takes a number whose own kind is not that of the result, but for ``full``."""

CASTS = frozenset("bfloat16 bool byte cdouble cfloat char double float half int long short type".split())
"""Methods that ATen knows as ``to``, with a dtype by name."""


def is_torchs(node: torch.fx.Node) -> bool:
    """Whether what a node calls comes down to ATen ops and nothing else."""
    name = target_name(node)
    if name in SWITCHING | BESIDE_AUTOGRAD:
        return False
    if node.op == "call_method":
        return node.target in CASTS or hasattr(torch.ops.aten, str(node.target))
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.namespace == "aten"
    owner = getattr(node.target, "__self__", None)
    return (owner.__name__ if isinstance(owner, ModuleType) else getattr(node.target, "__module__", "")) in HOMES


def _writes_openly(node: torch.fx.Node) -> bool:
    """Whether a node writes the model's state as an ATen op does, and not in a block of Python under other modes."""
    name = target_name(node)
    return name in ("batch_norm", "instance_norm", "iadd", "isub", "imul", "itruediv") or name.endswith("_")
