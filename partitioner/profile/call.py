"""One op called on its own, as a backend calls it: the same function, in its mode, on tensors like those of the model.

In a model weights come from where the ops between two calls have left them: from the first cache in a small model, from memory
in a large one. So before each timed call as many other bytes pass through the caches, and then the inputs are written anew, as
the op before does. (A matrix-vector product that finds its weights in a cache was measured three times as fast as another.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

from partitioner.ir.graph import Graph
from partitioner.ir.machine import Device
from partitioner.model.modes import casts_kept, in_mode, threads
from partitioner.model.node import call_node
from partitioner.profile.clock import Timing, time_of
from partitioner.profile.tensors import Arguments, arguments


def time_op(name: str, graph: Graph, device: Device, width: int, flood: int, budget: float) -> Timing:
    """Seconds of one op.

    Args:
        name: the op's.
        graph: whose op it is.
        device: where to call it.
        width: threads that it may use, on a CPU.
        flood: bytes that pass through the caches before each call.
        budget: seconds to spend.

    Raises:
        Unmeasurable, Disturbed: its arguments cannot be made; others kept its threads from running.
        Exception: what the op raises on values that are not the model's.
    """
    node, op, place = graph.nodes[name], graph.by_name[name], torch.device(device.torch_device)
    with ExitStack() as blocks:
        if place.type == "cpu":
            blocks.enter_context(threads(width))
        else:
            blocks.enter_context(place)
            blocks.enter_context(torch.accelerator.device_index(place.index or 0))
        blocks.enter_context(casts_kept())
        blocks.enter_context(in_mode(op.mode))
        given = _callable(node, graph, place)
        writes = any(access.write and access.resource != op.name for access in op.accesses)
        before = _Before(given, flood, writes, device.torch_device) if flood or writes else None
        return time_of(lambda: call_node(node, given.args, given.kwargs), device.torch_device, before, budget)


@contextmanager
def undisturbed(place: str) -> Iterator[None]:
    """A block in which ops may be called: the modes of whoever traces do not see them, and what they draw was never drawn.

    Args:
        place: torch device on which ops are called.
    """
    device = torch.device(place)
    indices = [] if device.type == "cpu" else [device.index or 0]
    kind = "cuda" if device.type == "cpu" else device.type
    with _disable_current_modes(), torch.random.fork_rng(indices, device_type=kind):
        yield


def _callable(node: torch.fx.Node, graph: Graph, place: torch.device) -> Arguments:
    """Arguments with which a node can be called: a leaf that has a gradient may not be written, and a model writes none."""
    given = arguments(node, graph.states, place)
    try:
        call_node(node, given.args, given.kwargs)
    except RuntimeError:
        given = arguments(node, graph.states, place, grad=False)
        call_node(node, given.args, given.kwargs)
    return given


class _Before:
    """What is done before each timed call: what is written gets its values back, caches are filled, inputs are fresh."""

    def __init__(self, given: Arguments, flood: int, writes: bool, place: str) -> None:
        tensors = (*given.fresh, *given.state)
        self.kept = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors] if writes else []
        self.fresh = [tensor.detach() for tensor in given.fresh]
        self.flood = torch.ones(flood // 4, device=place) if flood else None

    def __call__(self) -> None:
        for tensor, values in self.kept:
            tensor.copy_(values)
        if self.flood is not None:
            self.flood.mul_(1)
            for tensor in self.fresh:
                _touch(tensor)


def _touch(tensor: torch.Tensor) -> None:
    """Write a tensor's memory as the op that makes it would."""
    flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    flat.copy_(flat.clone())
