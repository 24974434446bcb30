"""What an op touches, told from its name and schema alone: the static table, used where nothing could be observed.

It errs to one side. An output may alias more than it does and an op may write more than it does; an op that is not
known at all conflicts with everything. Slow is allowed, wrong is not.

An `Effect` says which storages the result may share and which resources are read and written.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from partitioner.frontend.analysis.known_ops import ALIASING_MODULES, BATCH_NORMS, METADATA, RANDOM, RANDOM_MODULES, VIEWS
from partitioner.frontend.analysis.own_ops import is_trusted, may_draw
from partitioner.frontend.capture.tensors.checks import checked
from partitioner.frontend.capture.tensors.places import part_at
from partitioner.ir.access import ANY, RNG, Access
from partitioner.ir.graph import TensorMeta, Work
from partitioner.model.inplace import writes_in_place


@dataclass(frozen=True)
class Effect:
    """What one node does.

    Args:
        storages: that the result may share.
        reads, writes: resources.
        outputs, work: known only where they were observed.
        tensor: whether the result may hold a tensor.
    """

    storages: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    outputs: tuple[TensorMeta, ...] = ()
    work: Work | None = None
    tensor: bool = True

    def accesses(self, name: str) -> tuple[Access, ...]:
        """What the node called ``name`` reads and writes; it writes a storage that it makes."""
        written = self.writes | ({name} & self.storages)
        return tuple(Access(resource, resource in written) for resource in sorted(self.storages | self.reads | written))


@dataclass(frozen=True)
class Inputs:
    """The storages of a node's arguments: of each one, by the nodes found in it, and of all together."""

    of: dict[torch.fx.Node, frozenset[str]]

    def within(self, argument: Any) -> frozenset[str]:
        """Storages of the nodes inside one argument."""
        found: list[frozenset[str]] = []
        torch.fx.node.map_arg(argument, lambda node: found.append(self.of.get(node, frozenset())))
        return frozenset().union(*found)

    def all(self, node: torch.fx.Node) -> frozenset[str]:
        """Storages of every argument of ``node``."""
        return self.within((node.args, node.kwargs))


def static_effect(node: torch.fx.Node, inputs: Inputs, module: nn.Module | None, state: frozenset[str]) -> Effect:
    """The effect of one call node.

    Args:
        node: a ``call_function``, ``call_method`` or ``call_module``.
        inputs: the storages of its arguments.
        module: the module that a ``call_module`` calls.
        state: resources of that module's parameters and buffers.
    """
    if module is not None:
        return _module_effect(node, inputs, module, state)
    if isinstance(node.target, torch._ops.OpOverload):
        return _schema_effect(node, node.target, inputs)
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        overloads = [getattr(node.target, name) for name in node.target._overload_names]
        return _any_of([_schema_effect(node, each, inputs) for each in overloads])
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _unknown(node, inputs)
    return _python_effect(node, inputs)


def _any_of(effects: Sequence[Effect]) -> Effect:
    """What a call may do that is one of several."""
    none = frozenset[str]()
    return Effect(
        none.union(*(each.storages for each in effects)),
        none.union(*(each.reads for each in effects)),
        none.union(*(each.writes for each in effects)),
        tensor=any(each.tensor for each in effects),
    )


def _unknown(node: torch.fx.Node, inputs: Inputs) -> Effect:
    storages = inputs.all(node)
    return Effect(storages | {node.name}, storages, storages | {ANY})


def _module_effect(node: torch.fx.Node, inputs: Inputs, module: nn.Module, state: frozenset[str]) -> Effect:
    if not type(module).__module__.startswith("torch.nn") or any(module._modules.values()):
        unknown = _unknown(node, inputs)
        return Effect(unknown.storages, unknown.reads | state, unknown.writes | state)
    given = inputs.all(node)
    in_place = bool(getattr(module, "inplace", False))
    written = given if in_place else frozenset()
    if module.training:
        written |= {resource for resource in state if any(map(resource.endswith, module._buffers))}
        written |= {RNG} if isinstance(module, RANDOM_MODULES) else frozenset()
    shared = given if in_place or isinstance(module, ALIASING_MODULES) else frozenset()
    return Effect(shared | {node.name}, given | state, written)


def _schema_effect(node: torch.fx.Node, op: torch._ops.OpOverload, inputs: Inputs) -> Effect:
    reads = inputs.all(node)
    name = op._schema.name.partition("::")[2]
    written = frozenset().union(*(inputs.within(value) for value in mutated_arguments(op, node.args, node.kwargs)))
    if draws(op, node.args, node.kwargs):
        written |= {RNG}
    aliasing = name in VIEWS or op.is_view or any(result.alias_info is not None for result in op._schema.returns)
    tensor = any("Tensor" in str(result.type) for result in op._schema.returns)
    return Effect((reads if aliasing else frozenset()) | {node.name}, reads, written, tensor=tensor)


def mutated_arguments(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments that a call of ``op`` writes: by its schema, if that is to be trusted, and all of them otherwise.

    Batch norms write their statistics without saying so.
    """
    if not is_trusted(op):
        yield from (*args, *kwargs.values())
        return
    silent = op._schema.name.partition("::")[2] in BATCH_NORMS
    values = dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)) | kwargs
    for argument in op._schema.arguments:
        if argument.name in values:
            running = (
                silent
                and argument.name.startswith("running_")
                and any(map(values.get, ("training", "train", "use_input_stats")))
            )
            if running or (argument.alias_info is not None and argument.alias_info.is_write):
                yield values[argument.name]


def draws(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of an op may draw random numbers: its schema has a tag for that, which a user's own op may lack."""
    seeded = torch.Tag.nondeterministic_seeded in op.tags and not draws_nothing(op, args, kwargs)
    return seeded or may_draw(op)


def draws_nothing(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of an op that can draw random numbers draws none: dropout of probability 0, or not in training."""
    defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    values = defaults | dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    if op.overloadpacket is torch.ops.aten.native_dropout or "train" not in values:
        values.pop("p", None)  # which draws whatever it is, as that of `bernoulli` does
    return drops_nothing(values)


def drops_nothing(values: Mapping[str, Any]) -> bool:
    """Likewise, of a call's arguments by name."""
    probability = next((values[name] for name in ("dropout_p", "p", "dropout") if name in values), None)
    training = next((values[name] for name in ("train", "training") if name in values), None)
    return bool(probability == 0 or training == 0)  # Python takes 0 for False, and None is neither


_KNOWN_NAMESPACES = (torch, torch.Tensor, functional, operator, math, torch.special, torch.linalg, torch.fft)
_PURE_BUILTINS = frozenset(
    {getattr, len, int, float, bool, isinstance, tuple, list, dict, slice, max, min, sum, abs, range, zip, checked}
)


def _python_effect(node: torch.fx.Node, inputs: Inputs) -> Effect:
    target = node.target
    if target is getattr:
        shared = frozenset() if node.args[1] in METADATA else inputs.all(node)
        return Effect(shared | {node.name}, inputs.all(node), tensor=node.args[1] not in METADATA)
    if target in (operator.getitem, part_at):
        return Effect(inputs.all(node) | {node.name}, inputs.all(node))
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if not _is_known(target, name):
        return _unknown(node, inputs)
    reads = inputs.all(node)
    in_place = writes_in_place(node)
    written = inputs.within(node.args[:1] or tuple(node.kwargs.values())) if in_place else frozenset()
    written |= inputs.within(node.kwargs.get("out"))
    if name in BATCH_NORMS:
        statistics = node.kwargs.get("running_mean"), node.kwargs.get("running_var")
        written |= inputs.within(node.args[1:5]) | inputs.within(statistics)  # where they stand depends on the function
    if name in RANDOM:
        written |= {RNG}
    aliasing = name in VIEWS or target in _PURE_BUILTINS or _joins_sequences(node)
    shared = reads if written - {RNG} or aliasing else frozenset()
    return Effect(shared | {node.name}, reads, written, tensor=name not in METADATA)


def _joins_sequences(node: torch.fx.Node) -> bool:
    """Whether an addition may be one of tuples, as in ``outputs = (x,) + outputs[1:]``: the result holds what they hold."""
    return node.target in (operator.add, operator.iadd) and all(map(_may_be_sequence, node.args))


def _may_be_sequence(value: Any) -> bool:
    if not isinstance(value, torch.fx.Node):
        return isinstance(value, tuple | list)
    if value.target is operator.getitem:
        return isinstance(value.args[1], slice)
    return _joins_sequences(value) or value.op == "call_module" or value.target in _PURE_BUILTINS


def _is_known(target: Any, name: str) -> bool:
    if isinstance(target, str):  # a method; of a tensor, unless the name says otherwise
        return hasattr(torch.Tensor, name)
    if target in _PURE_BUILTINS:
        return True
    return any(getattr(space, name, None) is target for space in (*_KNOWN_NAMESPACES, builtins, torch._C._nn))
