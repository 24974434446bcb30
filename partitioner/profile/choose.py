"""Which ops are worth measuring: those that take most of the time, and those on or near the critical path."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partitioner.ir.cost import Costs
from partitioner.ir.dag import upward_priority
from partitioner.ir.graph import Graph

COVER = 0.95
"""The part of the estimated time that is measured."""

NEAR = 0.95
"""An op is near the critical path if the longest path through it is at least this part of it."""

COVER_NEAR = 0.99
"""The part of the time of the ops near the critical path that is measured."""


def matters(graph: Graph, costs: Costs) -> list[str]:
    """The ops whose time decides how good a plan is, by name, in program order.

    Ops whose FLOPs could not be counted are among them, for nothing is known of their time.

    Args:
        graph: the ops and their order.
        costs: what they are estimated to take.
    """
    first = costs.machine.devices[0]
    computing = [op.name for op in graph.ops if costs.ops[op.name].flops or costs.ops[op.name].moved]
    time = {name: costs.op_time(name, first, first.threads_per_lane) for name in computing}
    through = longest_paths(graph, lambda op: time.get(op, 0.0))
    critical = max(through.values(), default=0.0)
    near = {name: seconds for name, seconds in time.items() if through[name] >= NEAR * critical}
    unknown = {op.name for op in graph.ops if op.flops is None and op.tensor}
    chosen = cover(time, COVER) | cover(near, COVER_NEAR) | unknown
    return [op.name for op in graph.ops if op.name in chosen]


def cover(seconds: Mapping[str, float], share: float) -> set[str]:
    """The fewest keys whose seconds are ``share`` of all.

    >>> sorted(cover({"a": 6.0, "b": 1.0, "c": 3.0}, 0.9))
    ['a', 'c']
    """
    left, chosen = share * sum(seconds.values()), set()
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        if left <= 1e-12 * len(seconds):
            break
        chosen.add(name)
        left -= seconds[name]
    return chosen


def longest_paths(graph: Graph, time: Callable[[str], float]) -> dict[str, float]:
    """Seconds of the longest path through each op: its upward and its downward rank, which both count it, less itself."""
    up, down = upward_priority(graph.dag, time), upward_priority(graph.dag.reverse(copy=False), time)
    return {name: up[name] + down[name] - time(name) for name in up}
