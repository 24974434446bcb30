"""What the largest load cannot be below, whoever places the tasks. Proven, and quick.

work     all processors share all of it and all bytes, each unit where it is cheapest in the long run
number   of the 2 m + 1 longest units one of m processors has three
a unit   one processor has it, and either has its neighbours too or pays for what passes between them: a minimum cut; where
         it costs more from here than from there, as if it always went the cheapest way
a path   if no path may leave a processor and come back, each processor has one interval of it (`paths.py`)
"""

from __future__ import annotations

from math import inf

import networkx as nx
import numpy as np

from partitioner.ir.problem import Problem
from partitioner.planner.prices import least_paid, rents
from partitioner.planner.throughput.branch import soon_searched
from partitioner.planner.throughput.hulls import units_of
from partitioner.planner.throughput.loads import Loads
from partitioner.planner.throughput.paths import path_bound
from partitioner.planner.throughput.prices import Alike, Park, park_of
from partitioner.planner.throughput.units import Floats

SAFE = 1.0 - 1e-9
"""Keeps a bound that was found with floating-point numbers below the true one."""

MOST_FOR_CUTS = 3_000
"""Units and flows of a problem up to which minimum cuts are worth their time."""

CUTS = 10
"""Units of which the minimum cut is found."""


def load_bound(problem: Problem) -> float:
    """Seconds that the largest load of a processor cannot be below.

    Args:
        problem: what is placed; with ``contiguous``, groups are taken with all that lies between their tasks.

    Raises:
        PlacementError: a group of tasks can run nowhere.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> slow, fast = Kind("slow", {1: [4.0, 4.0, 4.0]}), Kind("fast", {1: [1.0, 1.0, 1.0]})
    >>> problem = Problem("p", ("a", "b", "c"), (slow, fast), (Processor("x", 0), Processor("y", 1)), [])
    >>> round(load_bound(problem), 3)  # 2.4 units on y, and 0.6 of one on x
    2.4
    """
    return bound_of(park_of(units_of(problem, problem.contiguous)))


def least_load(problem: Problem) -> float:
    """The smallest largest load there is of few groups, if that is known soon; `load_bound` of others.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> times, both = Kind("cpu", {1: [5.0, 4.0, 4.0, 3.0]}), (Processor("x", 0), Processor("y", 0, memory=1.0))
    >>> bag = Problem("bag", tuple("abcd"), (times,), both, [], memory=[1.0] * 4)
    >>> round(load_bound(bag), 3), round(least_load(bag), 3)  # y has room for one
    (8.0, 11.0)
    """
    park = park_of(units_of(problem, problem.contiguous))
    found = soon_searched(park)
    return SAFE * Loads(park, found.homes).largest if found.complete and found.homes else bound_of(park)


def bound_of(park: Park) -> float:
    """`load_bound` of units and processors."""
    if not park.units.count:
        return 0.0
    park.units.able  # noqa: B018  raises where a unit can run nowhere
    seconds = np.array([park.units.seconds[each.processors[0]] for each in park.classes])
    many, caps = np.array([len(each.processors) for each in park.classes], dtype=float), park.units.problem.caps
    room = many * [caps[each.processors[0]] for each in park.classes]
    held = park.units.memory
    paid = least_paid(seconds, held, room, *rents(seconds, many, held, room))
    least = seconds.min(axis=0)
    simple = max(paid, float(least.max()), pigeonholed(least, int(many.sum())))
    if park.units.contiguous or park.units.problem.contiguous:
        simple = max(simple, path_bound(park.units.problem, park.classes))
    return SAFE * cut_bound(park, seconds, simple)


def pigeonholed(seconds: Floats, lanes: int) -> float:
    """What the fullest of some lanes cannot be below: of the k m + 1 longest pieces of work, one of m lanes has k + 1 at least.

    Args:
        seconds: that each piece takes at least, on whichever lane.
        lanes: how many there are.

    Source: Dell'Amico and Martello, "Optimal scheduling of tasks on identical parallel processors", ORSA Journal on Computing
    7(2), 1995.

    >>> pigeonholed(np.array([1.0] * 5), 4)  # all the work, shared out, is 1.25 for each
    2.0
    """
    ordered = -np.sort(-seconds)
    sums = np.append(0.0, np.cumsum(ordered))
    last = np.arange(lanes, len(ordered), lanes)
    have = np.arange(1, len(last) + 1)
    return float((sums[last + 1] - sums[last - have]).max(initial=0.0))


def cut_bound(park: Park, seconds: Floats, best: float = 0.0) -> float:
    """The largest of ``best`` and, over some units, what the processor of that unit cannot be below: a minimum cut round it."""
    units = park.units
    if units.problem.overlap or units.count > MOST_FOR_CUTS:
        return best
    if not units.flows or units.count + len(units.flows) > MOST_FOR_CUTS:
        return best
    alone = seconds + np.array([_charges(park, each) for each in park.classes])
    if float(alone.min(axis=0).max()) <= best:
        return best
    networks = [_network(park, each, seconds[kind]) for kind, each in enumerate(park.classes)]
    for unit in np.argsort(-alone.min(axis=0))[:CUTS].tolist():
        around = float(alone[:, unit].min())
        for kind in np.argsort(seconds[:, unit]).tolist():
            if around <= best or seconds[kind, unit] >= around:
                break
            around = min(around, _cut(networks[kind], unit, float(seconds[kind, unit])))
        best = max(best, around)
    return best


def _charges(park: Park, alike: Alike) -> Floats:
    """Seconds of all flows that each unit makes or reads, on one of some processors: what it pays if it is there alone."""
    found = np.zeros(park.units.count)
    sends, receives = (park.flow_seconds(*each) for each in alike.least)
    for number, flow in enumerate(park.units.flows):
        found[flow.maker] += sends[number]
        found[list(flow.readers)] += receives[number]
    return found


def _network(park: Park, alike: Alike, seconds: Floats) -> nx.DiGraph[object]:
    """A network of which a cut is the load of a processor with the units on the side of the source; zero means no edge."""
    graph: nx.DiGraph[object] = nx.DiGraph()
    for unit, each in enumerate(seconds):
        graph.add_node(unit)
        if np.isfinite(each):
            graph.add_edge(unit, "sink", capacity=float(each))
        else:
            graph.add_edge(unit, "sink")  # without a capacity: it cannot be cut
    sends, receives = (park.flow_seconds(*each) for each in alike.least)
    for number, flow in enumerate(park.units.flows):
        if sends[number] > 0.0:
            graph.add_edge(flow.maker, ("send", number), capacity=float(sends[number]))
            graph.add_edges_from((("send", number), reader) for reader in flow.readers)
        if receives[number] > 0.0:
            graph.add_edge(("take", number), flow.maker, capacity=float(receives[number]))
            graph.add_edges_from((reader, ("take", number)) for reader in flow.readers)
    return graph


def _cut(graph: nx.DiGraph[object], unit: int, seconds: float) -> float:
    """The smallest load of a processor that has a unit."""
    if not np.isfinite(seconds):
        return inf
    return float(nx.minimum_cut_value(graph, unit, "sink"))
