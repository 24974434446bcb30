"""Throughput: placements against a brute force over all placements, and workloads of the published form against one optimum.

Nothing here asks the planner's clock or its loads: what a placement costs and what makes it valid is written down again, from
the definition, and placements of the published form are scored from their JSON.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from math import inf

import networkx as nx
import pytest

from partitioner.errors import PlacementError
from partitioner.ir.problem import ORDER, Channel, Kind, Problem, Processor
from partitioner.planner.throughput import contiguous, spread

SOLVER = find_spec("ortools") is not None

# The definition, again ------------------------------------------------------------------------------------------------


def cost(problem: Problem, homes: Sequence[int]) -> float:
    """The largest load: computing over lanes, and each passage of a value over a channel at every end of it."""
    worst = 0.0
    for here, processor in enumerate(problem.processors):
        table = problem.kinds[processor.kind].seconds[1]
        compute = sum(table[task] for task, home in enumerate(homes) if home == here) / processor.lanes
        sends = receives = 0.0
        for value, (maker, size) in enumerate(problem.values):
            theirs = {homes[target] for _, target, carried in problem.edges if carried == value} - {homes[maker]}
            passed = {channel for there in theirs for channel in problem.routes.get((homes[maker], there), ())}
            seconds = sum(
                problem.channels[c].latency + size / problem.channels[c].bandwidth
                for c in passed
                if here in problem.channels[c].ends
            )
            sends, receives = (sends + seconds, receives) if homes[maker] == here else (sends, receives + seconds)
        worst = max(worst, max(compute, sends, receives) if problem.overlap else compute + sends + receives)
    return worst


def faults(problem: Problem, homes: Sequence[int], convex: bool) -> Iterator[str]:
    """Every rule that a placement breaks."""
    group = problem.group or range(len(homes))
    if len(set(zip(group, homes, strict=True))) != len(set(group)):
        yield "a group is on two processors"
    yield from (
        f"pin of {g}" for g, pin in problem.pin.items() if any(homes[t] != pin for t in range(len(homes)) if group[t] == g)
    )
    for here, processor in enumerate(problem.processors):
        mine = [task for task, home in enumerate(homes) if home == here]
        if any(problem.kinds[processor.kind].seconds[1][task] == inf for task in mine):
            yield f"{processor.name} cannot run a task"
        if problem.memory and sum(problem.memory[task] for task in mine) > processor.memory:
            yield f"{processor.name} is full"
    if convex and not is_convex(problem, homes):
        yield "a path leaves a processor and comes back"


def is_convex(problem: Problem, homes: Sequence[int]) -> bool:
    forward: nx.DiGraph[int] = nx.DiGraph()
    forward.add_nodes_from(set(range(len(homes))) - problem.backward)
    forward.add_edges_from((a, b) for a, b, _ in problem.edges if not {a, b} & problem.backward)
    reached = {task: nx.descendants(forward, task) for task in forward}
    return not any(
        homes[first] == homes[last] != homes[between]
        for first in forward
        for between in reached[first]
        for last in reached[between]
    )


def optimum(problem: Problem, convex: bool) -> float:
    """The best of all placements; infinite if there is none."""
    groups = sorted(set(problem.group_of))
    best = inf
    for choice in product(range(len(problem.processors)), repeat=len(groups)):
        home = dict(zip(groups, choice, strict=True))
        homes = [home[group] for group in problem.group_of]
        if (
            not any(faults(problem, homes, False))
            and (value := cost(problem, homes)) < best
            and (not convex or is_convex(problem, homes))
        ):
            best = value
    return best


# Small problems with everything in them -------------------------------------------------------------------------------


def small(seed: int) -> Problem:
    """Some tasks on some processors of several kinds, with any of: groups, pins, caps, lanes, links, backward tasks."""
    chance = random.Random(seed)
    count, wide = chance.randint(3, 7), chance.randint(2, 3)
    edges, values = [], []
    for task in range(count):
        values.append((task, chance.choice([0.0, 1.0, 2.0, 5.0])))
        for target in range(task + 1, count):
            if chance.random() < 0.35:
                edges.append((task, target, len(values) - 1 if chance.random() < 0.9 else ORDER))
    rare = chance.random() < 0.3
    kinds = tuple(
        Kind(f"k{kind}", {1: [inf if rare and chance.random() < 0.15 else float(chance.randint(0, 9)) for _ in range(count)]})
        for kind in range(2)
    )
    capped = chance.random() < 0.4
    alike = chance.random() < 0.5
    processors = tuple(
        Processor(
            f"p{number}",
            0 if alike else chance.randint(0, 1),
            lanes=1 if alike else chance.randint(1, 2),
            memory=chance.choice([6.0, 9.0, inf]) if capped else inf,
        )
        for number in range(wide)
    )
    channels, routes = network(chance, wide)
    grouped = chance.random() < 0.5
    group = [chance.randint(0, count - 1) for _ in range(count)] if grouped else []
    pins = {chance.choice(group or range(count)): chance.randrange(wide)} if chance.random() < 0.3 else {}
    backward = frozenset(range(chance.randint(count // 2, count), count)) if chance.random() < 0.3 else frozenset()
    return Problem(
        f"small{seed}",
        tuple(f"t{task}" for task in range(count)),
        kinds,
        processors,
        edges,
        values,
        channels,
        routes,
        memory=[float(chance.randint(0, 4)) for _ in range(count)] if capped else [],
        group=group,
        pin=pins,
        backward=backward,
        objective="throughput",
        overlap=chance.random() < 0.5,
    )


def network(chance: random.Random, wide: int) -> tuple[tuple[Channel, ...], dict[tuple[int, int], tuple[int, ...]]]:
    """Links to the host for some or all, with some direct ones; or only direct ones; or what moves costs nothing."""
    form = chance.choice(["host", "mixed", "direct", "free"])
    channels, routes = [], {}
    hosted = [each for each in range(wide) if form in ("host", "mixed") and chance.random() < 0.8]
    number = {}
    for each in hosted:
        number[each] = len(channels)
        channels.append(Channel(f"host{each}", chance.choice([1.0, 2.0]), chance.choice([0.0, 0.5]), (each,)))
    for here, there in product(range(wide), repeat=2):
        if here < there and (form == "direct" or (form == "mixed" and chance.random() < 0.5)):
            routes[here, there] = routes[there, here] = (len(channels),)
            channels.append(Channel(f"link{here}{there}", chance.choice([1.0, 4.0]), 0.25, (here, there)))
        elif here != there and (here, there) not in routes:
            routes[here, there] = tuple(number[each] for each in (here, there) if each in number)
    return tuple(channels), routes


@pytest.mark.parametrize("convex", [False, True], ids=["spread", "contiguous"])
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_answers_against_all_placements(first: int, convex: bool) -> None:
    missed = 0
    for seed in range(first, first + 20):
        problem = small(seed)
        best = optimum(problem, convex)
        if best == inf:
            with pytest.raises(PlacementError):
                (contiguous if convex else spread)(problem, 1.0)
            continue
        homes, bound = (contiguous if convex else spread)(problem, 1.0)
        assert not list(faults(problem, homes, convex)), seed
        assert bound <= best + 1e-9, f"seed {seed}: a bound of {bound} above the optimum {best}"
        assert cost(problem, homes) >= best - 1e-9
        missed += cost(problem, homes) > best * (1 + 1e-6)
        assert not SOLVER or bound >= best * (1 - 1e-5), f"seed {seed}: {bound} is all that is proven of {best}"
    assert missed == 0
