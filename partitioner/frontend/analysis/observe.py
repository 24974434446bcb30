"""What an op touches, seen: one interpretation of the traced graph on fake tensors under a dispatch mode.

The mode reads the schema of every ATen op that a node comes down to: what it writes, whether it draws random numbers, how
many FLOPs it takes. Storages are told apart by identity, so views need no table. No memory is used and no kernel runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from partitioner.frontend.analysis.known_ops import SOMETIMES_VIEWS
from partitioner.frontend.analysis.static import Effect, draws_nothing, mutated_arguments, with_hooks
from partitioner.ir.access import RNG
from partitioner.ir.graph import TensorMeta
from partitioner.model.hooks import calls_users_hooks, silenced
from partitioner.model.node import call_target, fill, load_state
from partitioner.model.storage import storage_key, tensor_bytes


class Unobservable(Exception):
    """The graph cannot be interpreted on fake tensors; ``node`` is where it stopped."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node}: {reason}")
        self.node, self.reason = node, reason


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects, over the ops dispatched since `reset`, the storages written, randomness, and FLOPs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        """Forget."""
        self.written: list[torch.Tensor] = []
        self.random = False
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload):
            self.written += (leaf for value in mutated_arguments(func, args, kwargs) for leaf in _tensors(value))
            if torch.Tag.nondeterministic_seeded in func.tags and not draws_nothing(func, args, kwargs):
                self.random = True
            count = flop_registry.get(func._overloadpacket)
            if count is not None:
                self.flops += int(count(*args, **kwargs, out_val=result))
        return result


def observe(
    graph: torch.fx.Graph, module: nn.Module, constants: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> dict[str, Effect]:
    """The effect of every node of ``graph``, by name.

    Args:
        graph: the traced graph.
        module: the model; its state is replaced by fake tensors meanwhile.
        constants: what tracing lifted out of the model.
        tensors: example inputs, one for each placeholder; only their metadata is used.

    Raises:
        Unobservable: an op has no meaning on fake tensors, such as one whose output shape depends on data.
    """
    tensors = [tensor.detach() for tensor in tensors]  # before the modes, which would ask a tensor for its gradient
    with ExitStack() as stack:
        fake = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        state = fake_state(fake, module)
        stack.enter_context(silenced(module))
        stack.enter_context(_reparametrize_module(module, dict(state)))
        observer = _Observer(fake, module, constants, state)
        watch = stack.enter_context(observer.watch)
        assert watch is observer.watch
        return observer.run(graph, [fake.from_tensor(tensor) for tensor in tensors])


def fake_state(fake: FakeTensorMode, module: nn.Module) -> dict[str, torch.Tensor]:
    """Fake parameters and buffers by qualified name, ties kept."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: fake.from_tensor(tensor) for name, tensor in named}


class _Observer:
    """Interprets node by node; remembers which storage came first from where."""

    def __init__(
        self, fake: FakeTensorMode, module: nn.Module, constants: Mapping[str, Any], state: dict[str, torch.Tensor]
    ) -> None:
        self.fake, self.module, self.constants = fake, module, constants
        self.watch = Watch()
        self.owner: dict[int, str] = {}
        self.shared: dict[str, frozenset[str]] = {}  # what a storage that was made by a copy may be instead
        self.env: dict[torch.fx.Node, Any] = {}  # keeps every storage alive, so that none is met twice by chance
        for name, tensor in state.items():
            self._own(tensor, f"self.{name}")

    def run(self, graph: torch.fx.Graph, tensors: Sequence[torch.Tensor]) -> dict[str, Effect]:
        effects: dict[str, Effect] = {}
        inputs = iter(tensors)
        for node in graph.nodes:
            if node.op == "output":
                break
            self.watch.reset()
            try:
                self.env[node] = next(inputs) if node.op == "placeholder" else self._call(node)
            except Exception as error:  # a fake kernel may raise anything; the caller falls back to the static table
                raise Unobservable(node.name, f"{type(error).__name__}: {error}") from error
            effects[node.name] = self._effect(node)
        return effects

    def _call(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr":
            value = load_state(self.module, str(node.target), self.constants)
            return self.fake.from_tensor(value) if isinstance(value, torch.Tensor) and not _is_fake(value) else value
        args, kwargs = fill((node.args, node.kwargs), self.env.__getitem__)
        result = call_target(self.module, node.op, node.target, args, kwargs)
        return tree_map(_copied, result) if self._has_hooks(node) else result  # a hook may give another tensor

    def _effect(self, node: torch.fx.Node) -> Effect:
        arguments = [leaf for source in node.all_input_nodes for leaf in _tensors(self.env[source])]
        reads = frozenset(self._known(arguments))
        outputs = list(_tensors(self.env[node]))
        name = f"self.{node.target}" if node.op == "get_attr" else node.name
        if _may_alias(node) or self._has_hooks(node):
            self.shared[name] = reads
        storages = frozenset(known for tensor in outputs for known in self._maybe(self._own(tensor, name)))
        written = frozenset(self._known(self.watch.written)) - {name}
        touched = reads | self._module_state(node)
        metas = tuple(TensorMeta(tuple(map(int, t.shape)), t.dtype, tensor_bytes(t)) for t in outputs)
        random = frozenset({RNG} if self.watch.random else ())
        tensor = bool(outputs) or _opaque(self.env[node])
        effect = Effect(storages, touched, written | random, metas, self.watch.flops, tensor)
        return with_hooks(effect, name) if self._has_hooks(node) else effect

    def _has_hooks(self, node: torch.fx.Node) -> bool:
        return node.op == "call_module" and calls_users_hooks(self.module.get_submodule(str(node.target)))

    def _module_state(self, node: torch.fx.Node) -> frozenset[str]:
        if node.op != "call_module":
            return frozenset()
        called = self.module.get_submodule(str(node.target))
        return frozenset(self._known([*called.parameters(), *called.buffers()]))

    def _own(self, tensor: torch.Tensor, name: str) -> str:
        return self.owner.setdefault(storage_key(tensor), name)

    def _known(self, tensors: Sequence[torch.Tensor]) -> Iterator[str]:
        for tensor in tensors:
            name = self.owner.get(storage_key(tensor))
            if name is not None:
                yield from self._maybe(name)

    def _maybe(self, storage: str) -> frozenset[str]:
        """A storage, and those that it would be on inputs on which a copy is a view."""
        return frozenset({storage}) | self.shared.get(storage, frozenset())


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _is_fake(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "FakeTensor"


def _opaque(value: Any) -> bool:
    """Whether a value without tensors may still carry state: not a number, size, dtype, device or a structure of them."""
    plain = (
        int,
        float,
        complex,
        bool,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.Size,
        torch.SymInt,
        torch.layout,
        torch.memory_format,
    )
    return not all(isinstance(leaf, plain) for leaf in tree_leaves(value))


def _may_alias(node: torch.fx.Node) -> bool:
    """Whether an op that made a copy on these inputs may give a view of others: ``reshape``, ``contiguous``, ``to``."""
    target = node.target
    name = target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else target
    name = name if isinstance(name, str) else getattr(name, "__name__", "")
    return node.op in ("call_function", "call_method") and name in SOMETIMES_VIEWS
