"""Units of which no two lead to each other, so that stages can be cut between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import networkx as nx

from partitioner.planner.throughput.units import Units


def blocks(units: Units) -> Units:
    """Units that can be put in an order: those on a cycle are one, and those of backward tasks alone are with a neighbour."""
    followers, ties = units.after, _ties(units)
    if not ties and _acyclic(followers):
        return units
    followers = [set(each) for each in followers]
    for unit, other in ties:
        followers[unit].add(other)
        followers[other].add(unit)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(units.count))
    graph.add_edges_from((unit, follower) for unit, each in enumerate(followers) for follower in each)
    block = {unit: number for number, each in enumerate(nx.strongly_connected_components(graph)) for unit in each}
    return Units(units.problem, units.contiguous, numbered([block[unit] for unit in units.unit_of]))


def _acyclic(followers: Sequence[set[int]]) -> bool:
    waiting = [0] * len(followers)
    for each in followers:
        for follower in each:
            waiting[follower] += 1
    ready = [unit for unit, count in enumerate(waiting) if not count]
    for unit in ready:  # grows while it is read
        for follower in followers[unit]:
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    return len(ready) == len(followers)


def _ties(units: Units) -> list[tuple[int, int]]:
    """Each unit of backward tasks alone, and the one that it exchanges most with."""
    if not units.problem.backward:
        return []
    found, backward = [], units.problem.backward
    free = {unit for unit, tasks in enumerate(units.members) if backward.issuperset(tasks)}
    waiting = sorted(free)
    while waiting:
        later = []
        for unit in waiting:
            sizes: defaultdict[int, float] = defaultdict(float)
            for flow in (units.flows[number] for number in units.touching[unit]):
                for other in (flow.maker, *flow.readers):
                    sizes[other] += flow.size if other not in free and set(units.able[other]) <= set(units.able[unit]) else -1.0
            near = [other for other, size in sizes.items() if other not in free]
            if near:
                other = max(near, key=sizes.__getitem__)
                found.append((unit, other))
                free.discard(unit)
            else:
                later.append(unit)
        waiting = later if len(later) < len(waiting) else []
    return found


def numbered(labels: Sequence[int]) -> list[int]:
    """Labels as 0, 1, 2, ... in the order in which they first come."""
    number: dict[int, int] = {}
    return [number.setdefault(label, len(number)) for label in labels]
