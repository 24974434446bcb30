"""What an op touches, seen: each distinct op is called once on fake tensors under a dispatch mode.

The tracer has given every value a fake tensor of its own, so which values share a storage is told by identity. What an op
writes, whether it draws random numbers and how many FLOPs it takes is told by the schemas of the ATen ops that it comes down
to. Equal ops on arguments of equal shapes need one look. No memory is used and no kernel runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.flop_counter import flop_registry

from partitioner.frontend.analysis.known_ops import SOMETIMES_VIEWS
from partitioner.frontend.analysis.static import Effect, Inputs, draws_nothing, mutated_arguments, static_effect
from partitioner.ir.access import RNG, TOKENS
from partitioner.ir.graph import TensorMeta
from partitioner.model.node import fill
from partitioner.model.storage import storage_key, tensor_bytes


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects, over the ops dispatched since `reset`, the tensors written, randomness, and FLOPs."""

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
            self.written += (leaf for value in mutated_arguments(func, args, kwargs) for leaf in tensors_in(value))
            if torch.Tag.nondeterministic_seeded in func.tags and not draws_nothing(func, args, kwargs):
                self.random = True
            count = flop_registry.get(func._overloadpacket)
            if count is not None:
                self.flops += int(count(*args, **kwargs, out_val=result))
        return result


@dataclass(frozen=True)
class Seen:
    """What one look at an op tells: which of its tensor arguments it writes, by number; randomness; FLOPs."""

    written: frozenset[int]
    random: bool
    flops: int


def observe(graph: torch.fx.Graph, resources: Mapping[str, str]) -> dict[str, Effect]:
    """The effect of every node of a graph that Dynamo made, by name.

    Args:
        graph: with a fake tensor for every value.
        resources: the storage that each placeholder has, by name; those of one storage have one resource.
    """
    return _Observer(_Looks()).run(graph, resources)


class _Looks:
    """Looks at ops, at each distinct one once."""

    def __init__(self) -> None:
        self.known: dict[Any, Seen | None] = {}
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.watch = Watch()

    def at(self, node: torch.fx.Node, arguments: Any) -> Seen | None:
        """What a call of ``node`` on fakes like ``arguments`` does; ``None`` if it cannot be called on fakes."""
        leaves, spec = tree_flatten(arguments)
        key = (node.target, spec, tuple(map(_key, leaves)))
        try:
            if key not in self.known:
                self.known[key] = self._look(node, leaves, spec)
            return self.known[key]
        except TypeError:  # an argument cannot be hashed
            return self._look(node, leaves, spec)

    def _look(self, node: torch.fx.Node, leaves: list[Any], spec: Any) -> Seen | None:
        self.watch.reset()
        try:
            with torch.no_grad(), self.fake:
                fresh = [_fresh(leaf) for leaf in leaves]
                given = [leaf for leaf in fresh if isinstance(leaf, torch.Tensor)]
                number = {storage_key(tensor): index for index, tensor in enumerate(given)}
                args, kwargs = tree_unflatten(fresh, spec)
                with self.watch:
                    _call(node, args, kwargs)
                found = (number.get(storage_key(tensor)) for tensor in self.watch.written)
                return Seen(frozenset(index for index in found if index is not None), self.watch.random, self.watch.flops)
        except Exception:  # a fake kernel may raise anything; the static table knows something of every op
            return None


def _call(node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    return getattr(args[0], str(node.target))(*args[1:], **kwargs) if node.op == "call_method" else node.target(*args, **kwargs)  # type: ignore[operator]


def _key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(map(number_of, leaf.shape)), tuple(map(number_of, leaf.stride())), leaf.dtype, leaf.device
    leaf = number_of(leaf)
    return type(leaf), leaf, str(leaf) if isinstance(leaf, float) else ""


def _fresh(leaf: Any) -> Any:
    """A new fake like ``leaf``, with sizes as numbers."""
    if not isinstance(leaf, torch.Tensor):
        return number_of(leaf)
    if leaf.layout is not torch.strided:
        raise NotImplementedError(leaf.layout)
    shape, stride = tuple(map(number_of, leaf.shape)), tuple(map(number_of, leaf.stride()))
    return torch.empty_strided(shape, stride, dtype=leaf.dtype, device=leaf.device)


def number_of(value: Any) -> Any:
    """A symbolic number as the number that it was in the example; anything else as it is."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    hint = value.node.hint
    known = isinstance(hint, int | float)  # a size of ragged tensors has no number
    return hint if known else {torch.SymInt: 2, torch.SymFloat: 1.0, torch.SymBool: False}[type(value)]


class _Observer:
    """Goes through a graph; remembers which storage came first from where."""

    def __init__(self, looks: _Looks) -> None:
        self.looks = looks
        self.owner: dict[int, str] = {}
        self.shared: dict[str, frozenset[str]] = {}  # what a storage that was made by a copy may be instead
        self.effects: dict[str, Effect] = {}

    def run(self, graph: torch.fx.Graph, resources: Mapping[str, str]) -> dict[str, Effect]:
        for node in graph.nodes:
            if node.op == "output":
                break
            if node.op == "placeholder":
                for tensor in tensors_in(node.meta.get("example_value")):
                    self.owner[storage_key(tensor)] = resources.get(node.name, node.name)
            self.effects[node.name] = self._effect(node)
        return self.effects

    def _effect(self, node: torch.fx.Node) -> Effect:
        outputs = list(tensors_in(node.meta.get("example_value")))
        metas = tuple(TensorMeta(_shape(t), t.dtype, _bytes(t)) for t in outputs)
        if not node.op.startswith("call_"):
            return Effect(frozenset(self._own(tensor, node.name) for tensor in outputs), outputs=metas, tensor=bool(outputs))
        arguments = fill((node.args, node.kwargs), _value)
        given = list(tensors_in(arguments))
        reads = frozenset(name for tensor in given for name in self._known(tensor))
        if _may_alias(node):
            self.shared[node.name] = reads
        storages = frozenset(known for tensor in outputs for known in self._maybe(self._own(tensor, node.name)))
        written, random, flops = self._does(node, arguments, given)
        effect = Effect(storages, reads, (written | random) - {node.name}, metas, flops, bool(outputs) or _opaque(node))
        return effect

    def _does(
        self, node: torch.fx.Node, arguments: Any, given: list[torch.Tensor]
    ) -> tuple[frozenset[str], frozenset[str], int | None]:
        """The storages that a call writes, the tokens that it touches, its FLOPs."""
        bodies = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.fx.GraphModule)]
        if bodies:
            return self._bodies(bodies, given)
        seen = self.looks.at(node, arguments)
        if seen is None:
            inputs = Inputs({source: self.effects[source.name].storages for source in node.all_input_nodes})
            effect = static_effect(node, inputs, None, frozenset())
            return effect.writes, frozenset(), None
        written = frozenset(name for index in seen.written for name in self._known(given[index]))
        return written, frozenset({RNG} if seen.random else ()), seen.flops

    def _bodies(
        self, bodies: list[torch.fx.GraphModule], given: list[torch.Tensor]
    ) -> tuple[frozenset[str], frozenset[str], int]:
        """Of graphs that an op holds. Which argument a body writes depends on the op: any, then."""
        written, tokens, flops = frozenset[str](), frozenset[str](), 0
        for body in bodies:
            names = {node.name for node in body.graph.find_nodes(op="placeholder")}
            for effect in _Observer(self.looks).run(body.graph, {}).values():
                if effect.writes & names:
                    written |= {name for tensor in given for name in self._known(tensor)}
                tokens |= {resource for resource in effect.writes if resource in TOKENS}
                flops += effect.flops or 0
        return written, tokens, flops

    def _own(self, tensor: torch.Tensor, name: str) -> str:
        return self.owner.setdefault(storage_key(tensor), name)

    def _known(self, tensor: torch.Tensor) -> frozenset[str]:
        name = self.owner.get(storage_key(tensor))
        return frozenset() if name is None else self._maybe(name)

    def _maybe(self, storage: str) -> frozenset[str]:
        """A storage, and those that it would be on inputs on which a copy is a view."""
        return frozenset({storage}) | self.shared.get(storage, frozenset())


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors among the leaves of a tree."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        yield from (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _value(node: torch.fx.Node) -> Any:
    """What a node stands for: a fake tensor, or the body of a region."""
    if node.op != "get_attr":
        return node.meta.get("example_value")
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(map(number_of, tensor.shape))


def _bytes(tensor: torch.Tensor) -> int:
    if tensor.layout is not torch.strided and not tensor.is_nested:
        return int(tensor_bytes(tensor))
    return math.prod(_shape(tensor)) * tensor.element_size()


_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _opaque(node: torch.fx.Node) -> bool:
    """Whether a value without tensors may still carry state: not a number, size, dtype, device or a structure of them."""
    leaves = tree_leaves(node.meta.get("example_value"))
    return not all(isinstance(leaf, (*_PLAIN, *_SYMBOLIC)) for leaf in leaves)


def _may_alias(node: torch.fx.Node) -> bool:
    """Whether an op that made a copy on these inputs may give a view of others: ``reshape``, ``contiguous``, ``to``."""
    target = node.target
    name = target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else target
    name = name if isinstance(name, str) else getattr(name, "__name__", "")
    return name in SOMETIMES_VIEWS
