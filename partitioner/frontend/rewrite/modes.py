"""Grad mode, autocast and inference mode as a property of each op, instead of ops that switch them for what comes after.

    _set_grad_enabled(False)
    a = linear(x)                        a: grad off
    _set_grad_enabled(True)      ->      b = linear(x)
    b = linear(x)

So the ops of a region can run on any lane, beside others that are under other modes. What else is switched in the middle of
a graph (functorch's levels, deterministic algorithms, kernels of attention) has no such form: the ops from the first switch
to the last become one op, which runs as it lies.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.autograd import grad_mode
from torch.fx.passes.utils.fuser_utils import fuse_as_graphmodule

from partitioner.ir.mode import Mode

Switch = Callable[[Mode, dict[torch.fx.Node, Mode], torch.fx.Node], Mode]


def _set_grad(mode: Mode, _before: dict[torch.fx.Node, Mode], node: torch.fx.Node) -> Mode:
    return replace(mode, grad=bool(node.args[0]))


def _enter_inference(mode: Mode, before: dict[torch.fx.Node, Mode], node: torch.fx.Node) -> Mode:
    before[node] = mode
    return replace(mode, inference=bool(node.args[0]), grad=mode.grad and not node.args[0])


def _enter_autocast(mode: Mode, before: dict[torch.fx.Node, Mode], node: torch.fx.Node) -> Mode:
    before[node] = mode
    kind, dtype, enabled, cache = (*node.args, None, True, None)[:4] if len(node.args) < 4 else node.args
    chosen = str(dtype or torch.get_autocast_dtype(str(kind))).removeprefix("torch.")
    others = tuple(item for item in mode.autocast if item[0] != kind)
    return replace(
        mode,
        autocast=tuple(sorted((*others, (str(kind), bool(enabled), chosen)))),
        cache=mode.cache if cache is None else bool(cache),
    )


def _leave(_mode: Mode, before: dict[torch.fx.Node, Mode], node: torch.fx.Node) -> Mode:
    (entered,) = node.all_input_nodes
    return before[entered]


SWITCHES: dict[Any, Switch] = {
    torch._C._set_grad_enabled: _set_grad,
    grad_mode._enter_inference_mode: _enter_inference,
    grad_mode._exit_inference_mode: _leave,
    autocast_mode._enter_autocast: _enter_autocast,
    autocast_mode._exit_autocast: _leave,
}


def without_switches(graph: torch.fx.Graph, entry: Mode) -> tuple[dict[str, Mode], Mode]:
    """Take the switches out of ``graph``.

    Args:
        graph: edited.
        entry: the modes under which it starts.

    Returns:
        The modes of each node that is under others than ``entry``, by name; those under which it ends.
    """
    mode, before, found, switches = entry, dict[torch.fx.Node, Mode](), dict[str, Mode](), list[torch.fx.Node]()
    for node in graph.nodes:
        switch = SWITCHES.get(node.target) if node.op == "call_function" else None
        if switch is not None:
            mode = switch(mode, before, node)
            switches.append(node)
        elif mode != entry and node.op.startswith("call_"):
            found[node.name] = mode
    for node in reversed(switches):
        graph.erase_node(node)
    return found, mode


def is_bound(node: torch.fx.Node) -> bool:
    """Whether a node changes what the thread or the process is in, in a way that is no property of an op."""
    home = getattr(node.target, "__module__", None) or ""
    name = getattr(node.target, "__name__", "")
    if node.op != "call_function" or isinstance(node.target, torch._ops.OperatorBase | torch._ops.OpOverloadPacket):
        return False
    return name in _BOUND or home.startswith(_BOUND_HOMES)


_BOUND_HOMES = (
    "torch._C._functorch",
    "torch._functorch",
    "torch.autograd.forward_ad",
    "torch._C._autograd",
    "torch.nn.attention",
)
_BOUND = frozenset(
    """_set_deterministic_algorithms _set_fwd_grad_enabled _saved_tensors_hooks_disable _saved_tensors_hooks_enable
    _enter_dual_level _exit_dual_level _set_default_dtype""".split()
)


def with_regions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """``module`` with everything from the first bound node to the last as one op."""
    nodes = list(module.graph.nodes)
    bound = [number for number, node in enumerate(nodes) if is_bound(node)]
    if not bound:
        return module
    region = [node for node in nodes[bound[0] : bound[-1] + 1] if node.op not in ("placeholder", "output")]
    return _fused(module, region)


def _fused(module: torch.fx.GraphModule, region: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
    body, inputs, outputs = fuse_as_graphmodule(module, list(region), "region", always_return_tuple=True)
    graph = module.graph
    with graph.inserting_after(region[-1]):
        module.add_submodule("region_0", body)
        load = graph.get_attr("region_0")
    with graph.inserting_after(load):
        call = graph.call_function(run_region, (load, *inputs))
        call.meta = dict(region[-1].meta)
    call.meta["example_value"] = tuple(node.meta.get("example_value") for node in outputs)
    for number, node in reversed(list(enumerate(outputs))):
        with graph.inserting_after(call):
            item = graph.call_function(operator.getitem, (call, number))
        item.meta = dict(node.meta)
        node.replace_all_uses_with(item)
    for node in reversed(region):
        graph.erase_node(node)
    return module


def run_region(body: torch.fx.GraphModule, *inputs: Any) -> Any:
    """Run a region as it lies."""
    return body(*inputs)
