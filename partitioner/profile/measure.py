"""Seconds of the ops of a traced graph, each distinct one timed once with each number of threads that a lane may get.

An op is called as a backend calls it: the same function, in its mode, on tensors like those that it was traced with. In a model
weights come from where the ops between two calls have left them: from the first cache in a small model, from memory in a large
one. So before each timed call as many other bytes pass through the caches, and then the inputs are written anew, as the op
before does. (A matrix-vector product that finds its weights in a cache was measured three times as fast as one that does not.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from partitioner.ir.graph import Graph, Op
from partitioner.ir.machine import Device
from partitioner.model.modes import casts_kept, under
from partitioner.model.node import call_node
from partitioner.profile.cache import Cache
from partitioner.profile.clock import BUDGET, Timing, threads, time_of
from partitioner.profile.hardware import caches, environment
from partitioner.profile.signature import Unmeasurable, signature
from partitioner.profile.tensors import Arguments, arguments

LARGE_STATE = 1 << 17
"""Bytes of an op's state from which it matters whether they come from the last cache or from memory."""

SHARE = 0.5
"""Of a cache, what a model can count on: others use it too, and what is read in a circle drives itself out."""

FLOOD = 2
"""How often a cache is filled with other data until nothing is left in it of what was there."""


@dataclass(frozen=True)
class Found:
    """What was measured on one device.

    Args:
        seconds: by op name and number of threads.
        failed: why ops could not be measured, by op name.
        timed: how many timings were taken; the others came from the cache.
    """

    seconds: Mapping[tuple[str, int], float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    timed: int = 0


def measure(graph: Graph, names: Iterable[str], device: Device, cache: Cache, budget: float = BUDGET) -> Found:
    """Seconds of ops on a device that is there.

    Args:
        graph: which still has its fakes.
        names: the ops to measure.
        device: where; on a CPU with one thread, with a lane's share of the cores, and with all.
        cache: of earlier measurements.
        budget: seconds to spend on each distinct op with each number of threads.
    """
    nodes = {node.name: node for node in graph.fx.nodes}
    groups, refused = _groups(graph, names, nodes, overflown(graph, device.torch_device))
    place = environment(device.torch_device)
    known, new, failed = cache.load(place), dict[str, Timing](), dict[str, str]()
    try:
        with _undisturbed(device.torch_device):
            for width in widths(device):
                for (text, flood), ops in groups.items():
                    key = _key(text, flood, width)
                    if key in known or text in failed:
                        continue
                    op = graph.by_name[ops[0]]
                    try:
                        new[key] = _time(nodes[op.name], op, graph, device, width, flood, budget)
                    except Exception as error:  # whatever an op may raise on values that are not the model's
                        failed[text] = (
                            str(error) if isinstance(error, Unmeasurable) else f"{type(error).__name__} when called alone"
                        )
    finally:
        cache.store(place, {key: timing.seconds for key, timing in new.items() if timing.steady})
    known |= {key: timing.seconds for key, timing in new.items()}
    keys = {(op, width): _key(*which, width) for which, ops in groups.items() for op in ops for width in widths(device)}
    reasons = {op: failed[text] for (text, _), ops in groups.items() if text in failed for op in ops}
    return Found({each: known[key] for each, key in keys.items() if key in known}, {**refused, **reasons}, len(new))


def _key(text: str, flood: int, width: int) -> str:
    """What a measured time is found under in the cache."""
    return f"{text} after {flood} bytes, {width} threads"


def widths(device: Device) -> tuple[int, ...]:
    """The numbers of threads with which an op may run on a device, rising.

    >>> widths(Device("cpu", "cpu", lanes=4, cores=16)), widths(Device("gpu", "cuda:0"))
    ((1, 4, 16), (1,))
    """
    return tuple(sorted({1, device.threads_per_lane, device.cores}))


def overflown(graph: Graph, place: str) -> tuple[int, ...]:
    """Sizes of the caches of a torch device, rising, that a call of a graph fills: with its state and what its ops make."""
    state = sum(map(_bytes, (node for node in graph.fx.find_nodes(op="placeholder") if node.name in graph.states)))
    made = sum(op.bytes for op in graph.ops if op.name in op.storages)
    return tuple(size for size in caches(place) if SHARE * size < state + made)


def _bytes(node: torch.fx.Node) -> int:
    value = node.meta.get("example_value")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _groups(
    graph: Graph, names: Iterable[str], nodes: Mapping[str, torch.fx.Node], full: tuple[int, ...]
) -> tuple[dict[tuple[str, int], list[str]], dict[str, str]]:
    """The ops of each signature, and of each number of bytes that pass between two calls; and why other ops have none."""
    groups: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    refused: dict[str, str] = {}
    for name in names:
        node = nodes[name]
        try:
            text = signature(node, graph.by_name[name], graph)
        except Unmeasurable as error:
            refused[name] = str(error)
            continue
        state = sum(_bytes(source) for source in node.all_input_nodes if source.name in graph.states)
        level = full[-1 if state >= LARGE_STATE else 0] if full else 0
        groups[text, FLOOD * level].append(name)
    return dict(groups), refused


def _time(node: torch.fx.Node, op: Op, graph: Graph, device: Device, width: int, flood: int, budget: float) -> Timing:
    """Seconds of one op with so many threads."""
    place = torch.device(device.torch_device)
    with ExitStack() as blocks:
        if place.type == "cpu":
            blocks.enter_context(threads(width))
        else:
            blocks.enter_context(place)
            blocks.enter_context(torch.get_device_module(place).device(place))
        blocks.enter_context(casts_kept())
        blocks.enter_context(nullcontext() if op.mode is None else under(*op.mode.flags))
        given = _callable(node, graph, place)
        writes = any(access.write and access.resource != op.name for access in op.accesses)
        before = _Before(given, flood, writes, device.torch_device) if flood or writes else None
        return time_of(lambda: call_node(node, given.args, given.kwargs), device.torch_device, before, budget)


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


@contextmanager
def _undisturbed(place: str) -> Iterator[None]:
    """Random generators, fakes and modes of whoever traces are left alone; nothing is recorded of what is drawn."""
    device = torch.device(place)
    indices = [] if device.type == "cpu" else [device.index or 0]
    kind = "cuda" if device.type == "cpu" else device.type
    with _disable_current_modes(), torch.random.fork_rng(indices, device_type=kind):
        yield


def told(failed: Mapping[str, str]) -> tuple[str, ...]:
    """Why ops were not measured, a line for each reason.

    >>> told({"a": "it calls a graph", "b": "it calls a graph"})
    ('not measured: 2 ops, for it calls a graph (a, b)',)
    """
    lines = []
    for reason, count in Counter(failed.values()).most_common():
        names = [name for name in failed if failed[name] == reason]
        shown = ", ".join(names[:3]) + (", ..." if count > 3 else "")
        lines.append(f"not measured: {count} op{'s' * (count > 1)}, for {reason} ({shown})")
    return tuple(lines)


def as_costs(found: Found, device: str) -> dict[tuple[str, str, int], Any]:
    """Measured seconds under the name of a device, as `Costs` has them."""
    return {(op, device, width): seconds for (op, width), seconds in found.seconds.items()}
