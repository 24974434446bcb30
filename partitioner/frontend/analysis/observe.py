"""What the ops of a graph touch, seen: the tracer has given every value a fake tensor of its own.

Which values share a storage is told by identity, what an op writes by a look at it (`looks.py`). Equal ops on arguments of
equal shapes need one look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from partitioner.frontend.analysis.known_ops import SOMETIMES_VIEWS
from partitioner.frontend.analysis.looks import Looks, form_of, remembered, value_of
from partitioner.frontend.analysis.static import Effect, Inputs, drops_nothing, static_effect
from partitioner.frontend.rewrite.higher_order import draws_in_backward, is_called_as_it_lies, runs_alone
from partitioner.frontend.rewrite.modes import is_switch
from partitioner.frontend.rewrite.regions import is_bound, is_of_thread
from partitioner.ir.access import ANY, LATER, RNG, TOKENS
from partitioner.ir.graph import NOTHING, TensorMeta, Work
from partitioner.model.fakes import bytes_of, number_of, tensors_in
from partitioner.model.hooks import passing
from partitioner.model.storage import storage_key, tensor_bytes

Names = frozenset[str]
NONE: Names = frozenset()


def observe(graph: torch.fx.Graph, resources: Mapping[str, str]) -> dict[str, Effect]:
    """The effect of every node of a graph that Dynamo made, by name.

    Args:
        graph: with a fake tensor for every value.
        resources: the storage that each placeholder has, by name; those of one storage have one resource.
    """
    return _Observer(Looks()).run(graph, resources)


class _Observer:
    """Goes through a graph.

    Attributes:
        owner: which node a storage came from first.
        held: for each node the storages of each tensor in its value, and those that it may have on other inputs.
        forms: what tells the value of each node from others.
        metas: the tensors of a value, by its form.
    """

    def __init__(self, looks: Looks) -> None:
        self.looks = looks
        self.owner: dict[int, str] = {}
        self.maybe: dict[str, Names] = {}
        self.held: dict[torch.fx.Node, tuple[Names, ...]] = {}
        self.forms: dict[torch.fx.Node, Any] = {}
        self.metas: dict[Any, tuple[TensorMeta, ...]] = {}
        self.effects: dict[str, Effect] = {}

    def run(self, graph: torch.fx.Graph, resources: Mapping[str, str]) -> dict[str, Effect]:
        """The effect of every node, by name."""
        for node in graph.nodes:
            if node.op == "output":
                break
            if node.op == "placeholder":
                for tensor in tensors_in(node.meta.get("example_value")):
                    self.owner[storage_key(tensor)] = resources.get(node.name, node.name)
            self.effects[node.name] = self._effect(node)
        return self.effects

    def _effect(self, node: torch.fx.Node) -> Effect:
        called = node.op.startswith("call_")
        reads = NONE.union(*(self.effects[source.name].storages for source in node.all_input_nodes)) if called else NONE
        if called and (shares := self._shares(node, reads)):
            self.maybe[node.name] = shares
        value = value_of(node)
        if called and _gives_its_input(node):
            self._is_the_same(value, node.all_input_nodes[0])
        tensors = (value,) if isinstance(value, torch.Tensor) else tuple(tensors_in(value))
        self.held[node] = held = tuple([self._names(tensor, node.name) for tensor in tensors])
        self.forms[node] = form = form_of(value)
        storages = held[0] if len(held) == 1 else NONE.union(*held)
        metas = remembered(self.metas, form, lambda: tuple(map(_meta, tensors))) if tensors else ()
        if not called:
            return Effect(storages, outputs=metas, tensor=bool(tensors))
        written, work = self._does(node)
        return Effect(storages, reads, written - {node.name}, metas, work, bool(tensors) or _opaque(value))

    def _shares(self, node: torch.fx.Node, reads: Names) -> Names:
        """The storages that a call's result may have although it was not seen to: where a copy is sometimes a view."""
        return reads if _may_alias(node) else NONE

    def _is_the_same(self, value: torch.Tensor, given: torch.fx.Node) -> None:
        """Note that a value is what was given, though its fake is a copy."""
        self.owner.setdefault(storage_key(value), self.owner.get(storage_key(value_of(given)), given.name))

    def _names(self, tensor: torch.Tensor, name: str) -> Names:
        """The storages that a tensor has or may have."""
        own = self.owner.setdefault(storage_key(tensor), name)
        return frozenset((own,)) | self.maybe.get(own, NONE)

    def _does(self, node: torch.fx.Node) -> tuple[Names, Work | None]:
        """What a call writes, tokens among it, and its work."""
        if is_switch(node) or is_bound(node):  # to call it would switch something here and now
            return NONE if is_switch(node) or is_of_thread(node) else frozenset({ANY}), NOTHING
        given: list[Names] = []
        form = self._form((node.args, node.kwargs), given)
        loaded = [value_of(source) for source in node.all_input_nodes if source.op == "get_attr"]
        bodies = [value for value in loaded if isinstance(value, torch.fx.GraphModule)]
        if bodies:
            written, work = self._bodies(node, bodies, NONE.union(*given))
            later = {LATER} if RNG in written and draws_in_backward(node) else NONE
            return written | later | ({ANY} if runs_alone(node) else NONE), work
        if runs_alone(node):
            return (NONE if node.target is passing else self._beside(node)) | {ANY}, None
        seen = self.looks.at(node, form)
        if seen is None:
            return self._told(node).writes, None
        written = NONE.union(*(given[index] for index in seen.written))
        return written | {RNG} if seen.random else written, seen.work

    def _beside(self, node: torch.fx.Node) -> Names:
        """What an op writes that is about gradients of tensors, and not of copies: it lies where they were made."""
        about: list[torch.fx.Node] = []
        torch.fx.node.map_arg(node.args[1:] if node.target is torch.autograd.grad else node.args, about.append)
        resources = {each.name: f"gradient of {each.name}" for each in about}
        for name, resource in resources.items():
            effect = self.effects[name]
            self.effects[name] = replace(effect, reads=effect.reads | {resource})
        return frozenset(resources.values())

    def _form(self, argument: Any, given: list[Names]) -> Any:
        """What tells arguments from others; the storages of their tensors, one after the other, go to ``given``."""
        if isinstance(argument, torch.fx.Node):
            given += self.held[argument]
            return self.forms[argument]
        if isinstance(argument, tuple | list):
            return type(argument), *[self._form(item, given) for item in argument]
        if isinstance(argument, dict):
            return dict, *[(key, self._form(item, given)) for key, item in argument.items()]
        if isinstance(argument, slice):
            return slice, *[self._form(part, given) for part in (argument.start, argument.stop, argument.step)]
        return form_of(argument)

    def _told(self, node: torch.fx.Node) -> Effect:
        """What the static table says of a call."""
        inputs = Inputs({source: self.effects[source.name].storages for source in node.all_input_nodes})
        return static_effect(node, inputs, None, NONE)

    def _bodies(self, node: torch.fx.Node, bodies: list[torch.fx.GraphModule], given: Names) -> tuple[Names, Work]:
        """Of graphs that an op holds. Which argument a body writes depends on the op: any, if it is not called as it lies."""
        written, work = NONE, NOTHING
        for body in bodies:
            transforms = any(map(is_bound, body.graph.nodes))
            inner = (_InTransform if transforms else _Observer)(self.looks)
            names = [each.name for each in body.graph.find_nodes(op="placeholder")]
            passed = dict.fromkeys(names, given)
            if is_called_as_it_lies(node) and len(names) == len(node.args) - 1:
                passed = {name: self._storages(argument) for name, argument in zip(names, node.args[1:], strict=True)}
            for effect in inner.run(body.graph, {}).values():
                written |= NONE.union(*(passed[name] for name in effect.writes & passed.keys())) | (effect.writes & TOKENS)
                work = work.also(effect.work or NOTHING)
        return written, work

    def _storages(self, argument: Any) -> Names:
        return NONE.union(*self.held[argument]) if isinstance(argument, torch.fx.Node) else NONE


class _InTransform(_Observer):
    """Goes through a graph whose values may be wrapped by a transform: what they share is told by the static table."""

    def _shares(self, node: torch.fx.Node, reads: Names) -> Names:
        return reads if is_bound(node) else self._told(node).storages

    def _is_the_same(self, value: torch.Tensor, given: torch.fx.Node) -> None:
        pass  # the static table knows

    def _names(self, tensor: torch.Tensor, name: str) -> Names:
        return frozenset((name,)) | self.maybe.get(name, NONE)

    def _does(self, node: torch.fx.Node) -> tuple[Names, Work | None]:
        written, work = super()._does(node)
        return (written, work) if is_bound(node) else (self._told(node).writes, work)


def _meta(tensor: torch.Tensor) -> TensorMeta:
    sparse = tensor.layout is not torch.strided and not tensor.is_nested
    size = int(tensor_bytes(tensor)) if sparse else bytes_of(tensor)
    return TensorMeta(tuple(map(number_of, tensor.shape)), tensor.dtype, size)


_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _opaque(value: Any) -> bool:
    """Whether a value without tensors may still carry state: not a number, size, dtype, device or a structure of them."""
    return not all(isinstance(leaf, (*_PLAIN, *_SYMBOLIC)) for leaf in tree_leaves(value))


def _gives_its_input(node: torch.fx.Node) -> bool:
    """Whether a call is a dropout that drops nothing: eager gives the input itself, torch's decomposition for fakes a copy."""
    if node.target not in (functional.dropout, torch.dropout, torch.ops.aten.dropout.default):
        return False
    return drops_nothing({"p": 0.5} | dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs)


def _may_alias(node: torch.fx.Node) -> bool:
    """Whether an op that made a copy on these inputs may give a view of others: ``reshape``, ``contiguous``, ``to``."""
    target = node.target
    name = target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else target
    name = name if isinstance(name, str) else getattr(name, "__name__", "")
    return name in SOMETIMES_VIEWS
