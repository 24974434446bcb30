"""One op of the graph, ready to be called on a device: what both the interpreter and the generated code need.

Tracing burns devices in: ``torch.arange(n, device=cpu)``. Wherever an op lands, its device arguments are that device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from partitioner.ir.graph import Graph
from partitioner.ir.plan import Plan
from partitioner.model.state import attribute


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
    if kwargs.get("device") is not None or (here.type != "cpu" and makes_from_nothing(node, args)):
        kwargs["device"] = here
    return target, args, kwargs


_FACTORIES = frozenset(
    """arange empty eye full hamming_window hann_window linspace logspace ones rand randint randn randperm tensor tril_indices
    triu_indices zeros""".split()
)


def makes_from_nothing(node: torch.fx.Node, args: tuple[Any, ...]) -> bool:
    """Whether an op makes a tensor from numbers alone, and would put it on the default device unless it is told another."""
    if isinstance(node.target, torch._ops.OpOverload):
        arguments = node.target._schema.arguments
        takes = any(argument.name == "device" for argument in arguments[len(args) :])
        return takes and not any("Tensor" in str(argument.type) for argument in arguments)
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and name in _FACTORIES and getattr(torch, name, None) is node.target


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
    return torch.fx.GraphModule(attributes, graph)


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
            return value.to(device, non_blocking=non_blocking)
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=non_blocking), value)


def results(graph: Graph) -> list[Any]:
    """What the graph returns: a list of nodes and constants."""
    (returned,) = graph.fx.output_node().args
    return list(returned)  # type: ignore[arg-type]
