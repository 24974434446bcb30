"""Seconds of the ops of a traced graph, each distinct one timed once with each number of threads that a lane may get."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from partitioner.ir.graph import Graph
from partitioner.ir.machine import Device
from partitioner.ir.words import few
from partitioner.model.fakes import bytes_of
from partitioner.profile.cache import Cache
from partitioner.profile.call import time_op, undisturbed
from partitioner.profile.clock import BUDGET, Disturbed, Timing
from partitioner.profile.hardware import caches, environment
from partitioner.profile.signature import Unmeasurable, signature

LARGE_STATE = 1 << 17
"""Bytes of an op's state from which it matters whether they come from the last cache or from memory."""

SHARE = 0.5
"""Of a cache, what a model can count on: others use it too, and what is read in a circle drives itself out."""

FLOOD = 2
"""How often a cache is filled with other data until nothing is left in it of what was there."""


MOST_DISTURBED = 3
"""Ops in a row that others keep from running until no more are tried with as many threads."""


@dataclass(frozen=True)
class Found:
    """What was measured on one device.

    Args:
        seconds: by op name and number of threads.
        failed: why ops could not be measured, by op name.
        timed: how many timings were taken; the others came from the cache.
        busy: by number of threads, how many ops could not be timed with so many, for others used the cores.
    """

    seconds: Mapping[tuple[str, int], float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    timed: int = 0
    busy: Mapping[int, int] = field(default_factory=dict)


def measure(graph: Graph, names: Iterable[str], device: Device, cache: Cache, budget: float = BUDGET) -> Found:
    """Seconds of ops on a device that is there.

    Args:
        graph: which still has its fakes.
        names: the ops to measure.
        device: where; on a CPU with one thread, with a lane's share of the cores, and with all.
        cache: of earlier measurements.
        budget: seconds to spend on each distinct op with each number of threads.
    """
    groups, failed = _groups(graph, names, overflown(graph, device.torch_device))
    place = environment(device.torch_device)
    session = _Session(graph, device, cache.load(place), budget)
    try:
        with undisturbed(device.torch_device):
            for width in widths(device):
                session.time(groups, width)
    finally:
        cache.store(place, {key: timing.seconds for key, timing in session.new.items() if timing.steady})
    seconds = {
        (op, width): session.known[key]
        for which, ops in groups.items()
        for width in widths(device)
        if (key := _key(*which, width)) in session.known
        for op in ops
    }
    failed |= {op: session.failed[text] for (text, _), ops in groups.items() if text in session.failed for op in ops}
    called = [op for ops in groups.values() for op in ops if op not in failed]
    busy = Counter(width for width in widths(device) for op in called if (op, width) not in seconds)
    return Found(seconds, failed, len(session.new), busy)


class _Session:
    """What is known so far on one device.

    Attributes:
        known: seconds, those from the cache included.
        new: what was timed now.
        failed: why ops cannot be called alone, by signature.
    """

    def __init__(self, graph: Graph, device: Device, known: dict[str, float], budget: float) -> None:
        self.graph, self.device, self.budget = graph, device, budget
        self.known, self.new = known, dict[str, Timing]()
        self.failed: dict[str, str] = {}

    def time(self, groups: Mapping[tuple[str, int], list[str]], width: int) -> None:
        """Time what is not known yet with so many threads, as long as others let it."""
        disturbed = 0
        for (text, flood), (name, *_) in groups.items():
            key = _key(text, flood, width)
            if key in self.known or text in self.failed:
                continue
            try:
                self.new[key] = time_op(name, self.graph, self.device, width, flood, self.budget)
                self.known[key], disturbed = self.new[key].seconds, 0
            except Disturbed:
                disturbed += 1
                if disturbed == MOST_DISTURBED:
                    return
            except Unmeasurable as error:
                self.failed[text] = str(error)
            except Exception as error:  # whatever an op may raise on values that are not the model's
                self.failed[text] = f"{type(error).__name__} when called alone"


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
    return bytes_of(value) if isinstance(value, torch.Tensor) else 0


def _groups(
    graph: Graph, names: Iterable[str], full: tuple[int, ...]
) -> tuple[dict[tuple[str, int], list[str]], dict[str, str]]:
    """The ops of each signature, and of each number of bytes that pass between two calls; and why other ops have none."""
    groups: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    refused: dict[str, str] = {}
    for name in names:
        node = graph.nodes[name]
        try:
            text = signature(node, graph.by_name[name], graph)
        except Unmeasurable as error:
            refused[name] = str(error)
            continue
        state = sum(_bytes(source) for source in node.all_input_nodes if source.name in graph.states)
        level = full[-1 if state >= LARGE_STATE else 0] if full else 0
        groups[text, FLOOD * level].append(name)
    return dict(groups), refused


def told(found: Found) -> tuple[str, ...]:
    """Why ops were not measured, a line for each reason.

    >>> told(Found(failed={"a": "it calls a graph", "b": "it calls a graph"}))
    ('not measured: 2 ops, for it calls a graph (a, b)',)
    """
    failed = found.failed
    lines = [
        f"not measured: {count} ops with {width} threads, for others used the cores" for width, count in found.busy.items()
    ]
    for reason, count in Counter(failed.values()).most_common():
        names = few([name for name in failed if failed[name] == reason])
        lines.append(f"not measured: {count} op{'s' * (count > 1)}, for {reason} ({names})")
    return tuple(lines)
