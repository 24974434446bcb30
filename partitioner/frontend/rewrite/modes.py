"""Grad mode, autocast and inference mode as a property of each op, instead of ops that switch them for what comes after.

    _set_grad_enabled(False)
    a = linear(x)                        a: grad off
    _set_grad_enabled(True)      ->      b = linear(x)
    b = linear(x)

So the ops of a block can run on any lane, beside others that are under other modes. What else is switched in the middle of a
graph has no such form, see `regions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.autograd import grad_mode

from partitioner.ir.mode import Mode

Switch = Callable[[Mode, dict[torch.fx.Node, Mode], torch.fx.Node], Mode]


def _set_grad(mode: Mode, _before: dict[torch.fx.Node, Mode], node: torch.fx.Node) -> Mode:
    return replace(mode, grad=bool(node.args[0]))


def _enter_inference(mode: Mode, before: dict[torch.fx.Node, Mode], node: torch.fx.Node) -> Mode:
    before[node] = mode
    return replace(mode, inference=bool(node.args[0]), grad=not node.args[0])  # `inference_mode(False)` turns gradients on


def _enter_autocast(mode: Mode, before: dict[torch.fx.Node, Mode], node: torch.fx.Node) -> Mode:
    before[node] = mode
    kind, dtype, enabled, cache = (*node.args, None, True, None)[:4] if len(node.args) < 4 else node.args
    chosen = str(dtype or torch.get_autocast_dtype(str(kind))).removeprefix("torch.")
    others = tuple(item for item in mode.autocast if item[0] != kind)
    return replace(
        mode,
        autocast=tuple(sorted((*others, (str(kind), bool(enabled), chosen)))),
        cache=mode.cache if cache is None else bool(cache),
        block=mode.block or len(before),
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


def is_switch(node: torch.fx.Node) -> bool:
    """Whether a node switches modes that are a property of ops."""
    return node.op == "call_function" and node.target in SWITCHES


def ends(node: torch.fx.Node) -> bool:
    """Whether a node ends the block of modes that its argument began."""
    return is_switch(node) and SWITCHES[node.target] is _leave


def without_switches(graph: torch.fx.Graph, entry: Mode, runs: Any) -> tuple[dict[str, Mode], Mode]:
    """Take the switches out of ``graph``.

    Args:
        graph: edited.
        entry: the modes under which it starts.
        runs: the function that runs a body with the switches in it, and leaves the modes as the last of those does.

    Returns:
        The modes of each node that is under others than ``entry``, by name; those under which it ends.
    """
    mode, before, found, switches = entry, dict[torch.fx.Node, Mode](), dict[str, Mode](), list[torch.fx.Node]()
    for node in graph.nodes:
        if is_switch(node):
            mode = SWITCHES[node.target](mode, before, node)
            switches.append(node)
        elif mode != entry and node.op.startswith("call_"):
            found[node.name] = mode
        if node.op == "call_function" and node.target is runs:
            for inner in filter(is_switch, getattr(graph.owning_module, str(node.args[0])).graph.nodes):
                mode = SWITCHES[inner.target](mode, before, inner)
    for node in reversed(switches):
        graph.erase_node(node)
    return found, mode
