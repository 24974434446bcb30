"""What is switched in the middle of a graph and is no property of an op: from the first such switch to the last, one op.

    _vmap_increment_nesting()
    b = _add_batch_dim(x)
    y = sin(b)                           region = run_region(body, x)
    z = _remove_batch_dim(y)      ->     z = region[0]
    _vmap_decrement_nesting()

So are functorch's levels, deterministic algorithms, kernels of attention, the default dtype. A region runs as it lies, on one
lane; if it switches something for the whole process, nothing runs beside it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._C._functorch import get_dynamic_layer_stack_depth, pop_dynamic_layer_stack_and_undo_to_depth
from torch.autograd import forward_ad
from torch.fx.passes.utils.fuser_utils import fuse_as_graphmodule
from torch.nn.attention import _cur_sdpa_kernel_backends, _sdpa_kernel

from partitioner.frontend.rewrite.modes import ends, is_switch
from partitioner.model.modes import hooks_refused, modes_here, refuse_hooks, take_over

OF_THREAD = ("torch._C._functorch", "torch._functorch", "torch.autograd.forward_ad", "torch._C._autograd")
"""Homes of the functions that open and close levels of transforms. These belong to a thread."""


def _exit_level(level: int | None = None) -> None:
    """Close the innermost level of forward mode, whichever number the traced one had; torch 2.11 gives it, newer ones not."""
    forward_ad.exit_dual_level()  # type: ignore[no-untyped-call]


_COUNTED: dict[str, Any] = {"_enter_dual_level": forward_ad.enter_dual_level, "_exit_dual_level": _exit_level}
"""By the names to which forward mode is traced, the functions around them, which note that a level is open."""

SWITCHES = frozenset(
    """_set_deterministic_algorithms _set_fwd_grad_enabled _saved_tensors_hooks_disable _saved_tensors_hooks_enable
    set_default_dtype set_float32_matmul_precision clear_autocast_cache _backend_from_string _sdpa_kernel""".split()
)


def is_bound(node: torch.fx.Node) -> bool:
    """Whether a node changes what the thread or the process is in, in a way that is no property of an op."""
    if (
        node.op != "call_function"
        or is_switch(node)
        or isinstance(node.target, torch._ops.OperatorBase | torch._ops.OpOverloadPacket)
    ):
        return False
    silent = not node.all_input_nodes and node.meta.get("example_value") is None  # it takes nothing and gives nothing
    return is_of_thread(node) or silent or getattr(node.target, "__name__", "") in SWITCHES


def is_of_thread(node: torch.fx.Node) -> bool:
    """Whether what a bound node changes belongs to the thread that it runs on."""
    home = getattr(node.target, "__module__", None) or ""
    return home.startswith(OF_THREAD) or getattr(node.target, "__name__", "") in ("_set_fwd_grad_enabled", _exit_level.__name__)


def with_regions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """``module`` with everything from the first bound node to the last as one op. No block of modes is cut by it."""
    nodes = list(module.graph.nodes)
    bound = [number for number, node in enumerate(nodes) if is_bound(node)]
    if not bound:
        return module
    first, last = bound[0], bound[-1]
    place = {node: number for number, node in enumerate(nodes)}
    pairs = [(place[node.all_input_nodes[0]], place[node]) for node in nodes if ends(node)]
    while cut := [(begin, end) for begin, end in pairs if begin < first <= end or begin <= last < end]:
        first, last = min(first, *(begin for begin, _ in cut)), max(last, *(end for _, end in cut))
    return _fused(module, [node for node in nodes[first : last + 1] if node.op not in ("placeholder", "output")])


def _fused(module: torch.fx.GraphModule, region: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
    for node in region:
        node.target = _COUNTED.get(getattr(node.target, "__name__", ""), node.target)
    body, inputs, outputs = fuse_as_graphmodule(module, list(region), "region", always_return_tuple=True)
    graph = module.graph
    with graph.inserting_after(region[-1]):
        module.add_submodule("region_0", body)
        load = graph.get_attr("region_0")
    with graph.inserting_after(load):
        call = graph.call_function(run_region, (load, *inputs))
        call.meta = dict(region[-1].meta)
        traces = (
            node.meta.get("stack_trace") for node in region if not is_bound(node)
        )  # a switch may say nothing of the user's
        call.meta["stack_trace"] = next(filter(None, traces), call.meta.get("stack_trace"))
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
    """Run a region as it lies, and leave the thread's modes as they were: those of other ops are known.

    If it fails, whatever it switched is put back, as a ``with`` in the model would do.
    """
    depth, modes = get_dynamic_layer_stack_depth(), modes_here()
    lanes = 0 if any(enabled for _, enabled, _ in modes[2]) else _autocast_nesting()
    _nest(-lanes)  # lanes count as a block of autocast: what one in the region has cast would not go at its end, as in eager
    nesting = _autocast_nesting()
    deterministic, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    dtype, kernels, refused = torch.get_default_dtype(), _cur_sdpa_kernel_backends(), hooks_refused()
    level = forward_ad._current_level
    try:
        return body.forward(*inputs)  # called as a module, it would print a page of its own code if an op fails
    except BaseException:
        with suppress(RuntimeError):  # torch 2.11 complains of having popped the last one
            pop_dynamic_layer_stack_and_undo_to_depth(depth)
        while forward_ad._current_level > level:  # or nobody could open one any more
            _exit_level()
        if inner := _autocast_nesting() - nesting:
            _nest(-inner)
            torch.clear_autocast_cache()
        torch.use_deterministic_algorithms(deterministic, warn_only=warn)
        torch.set_default_dtype(dtype)
        _sdpa_kernel(kernels)
        refuse_hooks(refused)
        raise
    finally:
        _nest(lanes)
        take_over(modes[0], *modes[2:])


def _autocast_nesting() -> int:
    """How many autocast blocks this thread is in."""
    nesting: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting


def _nest(blocks: int) -> None:
    """Have this thread be in so many more autocast blocks, or fewer."""
    for _ in range(abs(blocks)):
        torch.autocast_increment_nesting() if blocks > 0 else torch.autocast_decrement_nesting()
