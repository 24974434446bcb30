"""How fast any plan of a model could be on a machine: the largest of its longest chain, of its work shared out evenly, and of
the time that the one thread takes which issues it, where every device is an accelerator.

    a 1 ms -- b 4 ms -- d 1 ms       critical path  a b d: 6 ms
          \\- c 2 ms -/               work           8 ms, on 2 lanes: 4 ms each        bound 6 ms

Source: Graham, "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17(2), 1969.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx

from partitioner.ir.cost import Costs
from partitioner.ir.dag import critical_path
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Device
from partitioner.planner.seconds import issue_seconds, lane_seconds


@dataclass(frozen=True)
class Bound:
    """What no plan can beat, in seconds.

    Args:
        work: every op once, one lane's share of a device each, on the device where it is fastest.
        critical_path: the longest chain of ops that must wait for each other, each alone on the device where it is fastest.
        ops: the ops of that chain, in order.
        seconds: the bound.
        issue: what one host thread takes to issue every op, where every device is an accelerator; else 0.
    """

    work: float
    critical_path: float
    ops: tuple[str, ...]
    seconds: float
    issue: float = 0.0


def lower_bound(graph: Graph, costs: Costs) -> Bound:
    """The bound for ``graph`` on the machine of ``costs``. Copies and hand-offs are left out, as a bound may.

    A lane that is alone on a CPU uses every core, so there a device counts for as many lanes as its cores hold.
    """
    devices = costs.machine.devices
    issue = sum(min(issue_seconds(costs, (op.name,), device) for device in devices) for op in graph.ops)
    hosted = issue if all(device.kind != "cpu" for device in devices) else 0.0
    work = sum(_fastest(costs, op.name, lambda device: device.threads_per_lane) for op in graph.ops)
    parallel = sum(max(device.lanes, device.cores / device.threads_per_lane) for device in devices)
    length, path = critical_path(_ordered(graph, costs), lambda op: _fastest(costs, op, lambda device: device.cores))
    return Bound(work, length, tuple(path), max(length, work / parallel, hosted), hosted)


def _fastest(costs: Costs, op: str, threads: Callable[[Device], int]) -> float:
    return min(lane_seconds(costs, (op,), device, threads(device)) for device in costs.machine.devices)


def _ordered(graph: Graph, costs: Costs) -> nx.DiGraph[str]:
    """The edges that order ops everywhere: on an accelerator, a shared random generator orders no kernels."""
    if costs.machine.on_cpus:
        return graph.dag
    dag: nx.DiGraph[str] = nx.DiGraph()
    dag.add_nodes_from(graph.dag)
    dag.add_edges_from(pair for pair, kind in graph.edges.items() if kind != "random")
    return dag
