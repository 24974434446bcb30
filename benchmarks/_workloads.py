"""The public planning workloads as they lie in their files, and as what the planner takes: a task graph, a machine, a Problem.

Two sets: the graphs of "Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski et al., NeurIPS 2020),
with `PUBLISHED` results beside them, and the per-layer profiles of PipeDream (Narayanan et al., SOSP 2019).
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partitioner.ir.problem import ORDER, Kind, Problem, Processor

HOST_BANDWIDTH = 1e9
"""bytes/s of every link to the host. The files give times, and bytes are made of them; any bandwidth gives these times back."""

MILLI = 1e-3
"""What one unit of time of the files is taken to be, in seconds."""


@dataclass(frozen=True)
class Published:
    """What is known of a workload, in the file's unit of time.

    Args:
        contiguous: the optimum that the authors' dynamic program found.
        best: the best that is known where placements need not be contiguous.
        bound: what no such placement can beat.
        exact: whether ``contiguous`` is one; the dynamic program did not finish on every graph, and then it took one order.
    """

    contiguous: float
    best: float
    bound: float
    exact: bool = True


PUBLISHED: Mapping[str, Published] = {
    "op_bert_l-3_inference": Published(27.9186, 21.908, 21.908),
    "op_bert_l-6_inference": Published(29.5795, 29.380, 25.45),
    "op_resnet50_inference": Published(124.349, 124.349, 124.349),
    "op_bert_l-3_training": Published(65.3031, 54.206, 54.206),
    "layer_bert24_inference": Published(17.7899, 17.715, 17.715),
    "layer_resnet50_inference": Published(33.7747, 33.380, 33.026),
    "layer_inceptionv3_inference": Published(51.5519, 51.456, 50.98, exact=False),
    "layer_gnmt_inference": Published(32.9107, 31.687, 31.29),
    "layer_resnet50_training": Published(78.6318, 78.270, 75.80),
    "layer_gnmt_training": Published(107.004, 88.461, 86.62),
}

Document = dict[str, Any]


def throughput_file(workloads: Path, name: str) -> Document:
    """One graph with its machine, as it lies in its file."""
    found: Document = json.loads((workloads / "dnn-partitioning" / "throughput" / f"{name}.json").read_text())
    return found


def graph_of(raw: Document) -> Document:
    """The tasks and edges of a file, in the form that `partitioner.plan` reads.

    >>> node = {"id": 7, "supportedOnFpga": 1, "cpuLatency": 4.0, "fpgaLatency": 2.0, "isBackwardNode": 0, "size": 8.0}
    >>> graph_of({"nodes": [node], "edges": []})["tasks"][0]["seconds"]
    {'cpu': 0.004, 'fpga': 0.002}
    """
    cost = {edge["sourceId"]: edge["cost"] for edge in raw["edges"]}
    tasks = [_task(node, cost.get(node["id"], 0.0)) for node in raw["nodes"]]
    return {"tasks": tasks, "edges": [[str(edge["sourceId"]), str(edge["destId"])] for edge in raw["edges"]]}


def _task(node: Document, cost: float) -> Document:
    seconds = {"cpu": node["cpuLatency"] * MILLI}
    if node["supportedOnFpga"]:
        seconds["fpga"] = node["fpgaLatency"] * MILLI
    task = {"name": str(node["id"]), "seconds": seconds, "memory": node["size"], "output": cost * MILLI * HOST_BANDWIDTH}
    colour = node.get("colorClass")
    return {**task, "backward": bool(node["isBackwardNode"]), **({} if colour is None else {"group": str(colour)})}


def machine_of(raw: Document) -> Document:
    """The accelerators and CPU cores of a file, in the form that `partitioner.plan` reads: nothing is computed while moving."""
    link = {"bandwidth": HOST_BANDWIDTH, "latency": 0}
    fpgas = [
        {"name": f"fpga{number}", "kind": "fpga", "memory": raw["maxSizePerFPGA"], "host_link": link}
        for number in range(raw["maxFPGAs"])
    ]
    cpus = [{"name": f"cpu{number}", "kind": "cpu"} for number in range(raw["maxCPUs"])]
    return {"devices": [*fpgas, *cpus], "overlap": False}


# Profiles of layers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """Layers in an order in which they may run, by number.

    Args:
        name: of the model.
        layers: their descriptions.
        milliseconds: of each one's forward pass.
        edges: numbers of a layer and of one that reads what it made.
    """

    name: str
    layers: Sequence[str]
    milliseconds: Sequence[float]
    edges: Sequence[tuple[int, int]]

    @property
    def before(self) -> list[list[int]]:
        """The layers that each one reads, in the order of their numbers."""
        found: list[list[int]] = [[] for _ in self.layers]
        for source, target in sorted(self.edges):
            found[target].append(source)
        return found

    @property
    def work(self) -> float:
        """Milliseconds of all layers."""
        return sum(self.milliseconds)

    @property
    def critical_path(self) -> float:
        """Milliseconds of the longest chain of layers."""
        ends: list[float] = []
        for own, sources in zip(self.milliseconds, self.before, strict=True):
            ends.append(own + max((ends[source] for source in sources), default=0.0))
        return max(ends, default=0.0)

    def problem(self, devices: int) -> Problem:
        """How these layers run on so many equal devices, with nothing that is moved."""
        seconds = Kind("device", {1: [MILLI * each for each in self.milliseconds]})
        processors = tuple(Processor(f"device{number}", 0) for number in range(devices))
        edges = [(source, target, ORDER) for source, target in self.edges]
        return Problem(self.name, tuple(self.layers), (seconds,), processors, edges)


def profile_file(workloads: Path, name: str) -> Profile:
    """The profile of a model, as it lies in its file."""
    return profile_of(name, (workloads / "pipedream" / f"{name}.txt").read_text())


def profile_of(name: str, text: str) -> Profile:
    r"""A profile in PipeDream's form: a line for each layer, an indented one for each edge.

    >>> lines = ["n2 -- ReLU -- forward_compute_time=0.5", "n1 -- Conv -- forward_compute_time=2.0", "\tn1 -- n2"]
    >>> profile_of("tiny", "\n".join(lines))
    Profile(name='tiny', layers=('n1 Conv', 'n2 ReLU'), milliseconds=(2.0, 0.5), edges=((0, 1),))
    """
    times: dict[str, tuple[str, float]] = {}
    pairs: list[tuple[str, str]] = []
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("\t"):
            source, target = line.strip().split(" -- ")
            pairs.append((source, target))
        else:
            node, what = line.split(" -- ")[:2]
            found = re.search(r"forward_compute_time=([\d.]+)", line)
            assert found is not None, f"no forward time in {line!r}"
            times[node] = (f"{node} {what}", float(found[1]))
    number = {node: place for place, node in enumerate(_topological(list(times), pairs))}
    layers = sorted(times, key=number.__getitem__)
    edges = tuple(sorted({(number[source], number[target]) for source, target in pairs}))
    return Profile(name, tuple(times[node][0] for node in layers), tuple(times[node][1] for node in layers), edges)


def _topological(nodes: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Nodes so that sources come first; of those that could come next, the one with the smallest number in its name."""
    waits = dict.fromkeys(nodes, 0)
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for source, target in pairs:
        after[source].append(target)
        waits[target] += 1
    ready = [(_number(node), node) for node in nodes if not waits[node]]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(heapq.heappop(ready)[1])
        for target in after[order[-1]]:
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(ready, (_number(target), target))
    assert len(order) == len(nodes), "the edges form a cycle"
    return order


def _number(node: str) -> int:
    return int("".join(filter(str.isdigit, node)) or 0)
