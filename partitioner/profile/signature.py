"""What an op is, beside its name: function, arguments, modes. Two ops of one signature take the same time, here and tomorrow.

    torch.conv2d(state float32[64,3,7,7]/(147,49,7,1), ...) grad

Only functions of torch and of Python's operators are ever called on their own: what a user wrote may do anything.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import torch

from partitioner.ir.access import ANY
from partitioner.ir.graph import Graph, Op
from partitioner.model.fakes import layout_of, number_of, tensors_in
from partitioner.model.modes import modes_here

_ROOTS = ("torch", "_operator", "operator", "math", "builtins")
_PLACES = (torch, torch.nn.functional, torch._C._nn, torch._VF, torch.special, torch.linalg, torch.fft, operator, math)
_NAMESPACES = ("aten", "prims")
_PLAIN = (int, float, complex, bool, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Unmeasurable(Exception):
    """Why an op cannot be called on its own, in a few words."""


def signature(node: torch.fx.Node, op: Op, graph: Graph) -> str:
    """What tells the time of an op from the times of others, as text that stays the same from one process to the next.

    Args:
        node: the op in the traced graph, with a fake for every value.
        op: the op in ``graph``.
        graph: whose state it may use.

    Raises:
        Unmeasurable: it cannot be called on its own.
    """
    if any(access.resource == ANY for access in op.accesses):
        raise Unmeasurable("its effects are not known")
    name = _name(node)
    states = {source for source in node.all_input_nodes if source.name in graph.states}
    arguments = _text((node.args, node.kwargs), states)
    if not list(tensors_in([value_of(source) for source in (*node.all_input_nodes, node)])):
        raise Unmeasurable("it has no tensors")
    modes = modes_here() if op.mode is None else op.mode.flags
    inference = modes[1] if modes[1] is not None else torch.is_inference_mode_enabled()
    casts = " ".join(f"{kind}:{dtype}" for kind, enabled, dtype in modes[2] if enabled)
    return f"{name}{arguments} {'inference' if inference else 'grad' if modes[0] else 'no grad'} {casts}".rstrip()


def value_of(node: torch.fx.Node) -> Any:
    """The fake value that tracing gave a node.

    Raises:
        Unmeasurable: it has none; it is the body of a higher-order op.
    """
    if node.op == "get_attr":
        raise Unmeasurable("it calls a graph")
    return node.meta.get("example_value")


def _name(node: torch.fx.Node) -> str:
    """A name for what a node calls that is the same in every process."""
    target = node.target
    if node.op == "call_method":
        first = value_of(node.args[0]) if isinstance(node.args[0], torch.fx.Node) else None
        if not isinstance(first, torch.Tensor):
            raise Unmeasurable("it is a method of no tensor")
        return f"Tensor.{target}"
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in _NAMESPACES:
            raise Unmeasurable("it is an op that somebody has registered")
        return str(target)
    name = getattr(target, "__name__", "")
    module = getattr(target, "__module__", None)
    if module is None:
        module = next((place.__name__ for place in _PLACES if getattr(place, name, None) is target), "")
    if module.split(".")[0] not in _ROOTS:
        raise Unmeasurable("it is not one of torch's own")
    return f"{module}.{name}"


def _text(value: Any, states: Collection[torch.fx.Node]) -> str:
    """Arguments as text: tensors by dtype, shape and strides, numbers by value."""
    if isinstance(value, torch.fx.Node):
        return ("state " if value in states else "") + _text(value_of(value), ())
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(_text(item, states) for item in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}={_text(item, states)}' for key, item in value.items())}}}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step), states)}"
    value = number_of(value)
    if not isinstance(value, _PLAIN):
        raise Unmeasurable(f"it takes a {type(value).__name__}")
    return "a device" if isinstance(value, torch.device) else repr(value)


def _tensor(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise Unmeasurable("it takes tensors that are not dense")
    shape, stride = (",".join(map(str, numbers)) for numbers in layout_of(tensor))
    recorded = " grad" if tensor.requires_grad else ""
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]/({stride}){recorded}"
