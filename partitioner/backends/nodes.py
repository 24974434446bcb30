"""One op of the graph, ready to be called on a device: what both the interpreter and the generated code need.

Tracing burns devices in: ``torch.arange(n, device=cpu)``. Wherever an op lands, its device arguments are that device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves, tree_map_only

from partitioner.ir.graph import Graph
from partitioner.ir.plan import Plan
from partitioner.model.state import attribute
from partitioner.model.storage import packed, repeats


def op_devices(plan: Plan) -> dict[str, str]:
    """The torch device of each op, by name; empty where all lie on the one device on which they were traced."""
    lanes, lane = plan.machine.lanes, plan.placement.lane
    places = plan.machine.places
    if len(places) == 1 and plan.graph.device in ("", *places):
        return {}
    return {op: lanes[lane[task]].torch_device for op, task in plan.tasks.task_of.items()}


def retarget(node: torch.fx.Node, device: str | None) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Target and arguments of a call node with every device in them replaced.

    Args:
        node: the call.
        device: torch device on which it will run; ``None`` for the one on which it was traced.

    Returns:
        ``(target, args, kwargs)``; nodes stay where they are, except where they are asked for a device.
    """
    target, args, kwargs = node.target, node.args, dict(node.kwargs)
    if device is None:
        return target, args, kwargs
    here = torch.device(device)
    if node.op == "call_method" and target in ("cuda", "cpu", "xpu", "mps"):
        return "to", (args[0], here), {key: value for key, value in kwargs.items() if key != "device"}
    if isinstance(target, torch._ops.OpOverload):
        names = [argument.name for argument in target._schema.arguments if "Device" in str(argument.type)]
        positions = [n for n, argument in enumerate(target._schema.arguments) if argument.name in names]
        args = tuple(here if n in positions and arg is not None else arg for n, arg in enumerate(args))
    else:
        text = target == "to"  # a string is a device there, and only there
        args = tuple(here if _is_device(arg, text and n == 1) else arg for n, arg in enumerate(args))
    if kwargs.get("device") is not None or (here.type != "cpu" and _takes_device(node, args)):
        kwargs["device"] = here
    elif here.type != "cpu" and _makes_from_nothing(node):
        return _made_on(device, target), args, kwargs
    return target, args, kwargs


_FACTORIES = frozenset({*_device_constructors(), torch._refs.tensor})
"""Functions of torch's that put what they make where they are told; the last is `torch.tensor` of numbers that are open."""


def _takes_device(node: torch.fx.Node, args: tuple[Any, ...]) -> bool:
    """Whether an op would put what it makes on the default device unless it is told another."""
    if not isinstance(node.target, torch._ops.OpOverload):
        known = node.target in _FACTORIES or (node.target is torch.normal and _makes_from_nothing(node))
        return node.op == "call_function" and known
    arguments = node.target._schema.arguments
    takes = any(argument.name == "device" for argument in arguments[len(args) :])
    return takes and not any("Tensor" in str(argument.type) for argument in arguments)


def _makes_from_nothing(node: torch.fx.Node) -> bool:
    """Whether an op makes a tensor from numbers alone."""

    def holds_tensors(one: torch.fx.Node) -> bool:
        return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(one.meta.get("example_value")))

    return holds_tensors(node) and not any(map(holds_tensors, node.all_input_nodes))


@cache
def _made_on(device: str, target: Callable[..., Any]) -> Callable[..., Any]:
    """A function that cannot be told a device (`torch.Tensor`), as one that puts what it makes on one."""

    def made(*args: Any, **kwargs: Any) -> Any:
        return move(target(*args, **kwargs), device)

    return made


def _is_device(argument: Any, text: bool) -> bool:
    if isinstance(argument, torch.fx.Node):
        return argument.target is getattr and argument.args[1] == "device"
    return isinstance(argument, torch.device) or (text and isinstance(argument, str))


def retarget_module(module: torch.fx.GraphModule, device: str) -> torch.fx.GraphModule:
    """A copy of a graph module, such as the body of a ``cond``, with its devices replaced and its tensors moved."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    attributes = {
        str(node.target): _placed(attribute(module, str(node.target)), device) for node in graph.find_nodes(op="get_attr")
    }
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            node.target, node.args, node.kwargs = retarget(node, device)
    copy = torch.fx.GraphModule(attributes, graph)
    copy.meta = dict(module.meta)  # where a checkpoint's body keeps the user's ``context_fn``
    return copy


def _placed(value: Any, device: str) -> Any:
    return retarget_module(value, device) if isinstance(value, torch.fx.GraphModule) else value


def bodies_for(graph: Graph, device_of: Callable[[str], str | None]) -> dict[str, Any]:
    """The graph modules that ops call, each with the devices in it replaced by that of its op."""
    bodies = dict(graph.bodies)
    for node in graph.fx.nodes:
        device = device_of(node.name)
        for source in node.all_input_nodes:
            if source.op == "get_attr" and device is not None:
                bodies[str(source.target)] = _placed(graph.bodies[str(source.target)], device)
    return bodies


def move(value: Any, device: str, *, non_blocking: bool = False) -> Any:
    """A value, or the tensors in it, on another device; differentiable. What holds no tensor is returned as it is.

    What was made in inference mode stays so: eager refuses to save it for backward, and its copy would be a tensor like others.
    """
    if isinstance(value, torch.Tensor):
        with torch.inference_mode() if value.is_inference() else nullcontext():
            return _moved(value, device, non_blocking)
    return tree_map_only(torch.Tensor, lambda tensor: _moved(tensor, device, non_blocking), value)


def _moved(tensor: torch.Tensor, device: str, non_blocking: bool) -> torch.Tensor:
    """A tensor on a device: one that repeats elements repeats them there, too, for ops lay their results out accordingly."""
    plain = tensor.layout is not torch.strided or tensor.is_nested or tensor.is_complex()
    if plain or str(tensor.device) == device or not repeats(tensor):
        return tensor.to(device, non_blocking=non_blocking)
    moved: torch.Tensor = _Repeating.apply(tensor, device, non_blocking)  # type: ignore[no-untyped-call]
    return moved


class _Repeating(torch.autograd.Function):
    """A copy of what a tensor repeats, repeated. Its gradient is the one of a plain copy: each element has its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: torch.Tensor, device: str, non_blocking: bool) -> torch.Tensor:
        return packed(tensor).to(device, non_blocking=non_blocking).expand(tensor.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.device, ctx.other = inputs[0].device, output.device

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient.to(ctx.device), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:
        return tangent.to(ctx.other)


def results(graph: Graph) -> list[Any]:
    """What the graph returns: a list of nodes and constants."""
    (returned,) = graph.fx.output_node().args
    return list(returned)  # type: ignore[arg-type]
