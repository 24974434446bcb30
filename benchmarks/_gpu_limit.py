"""How fast a call could be on one GPU, whoever issues it: from the times of its kernels, one after the other on one stream.

    max(CP, sum of t_i * u_i)

CP is the longest chain of the graph, each op with the time of its kernels; t_i is a kernel's time and u_i the part of the
multiprocessors that it has blocks for. What fills the device by itself gains nothing from lanes; what needs a tenth of it
leaves nine tenths to others. Kernels that share the device slow each other down in memory and caches, so it is a limit and no
promise.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from _gpu_ways import Inputs
from torch.profiler import ProfilerActivity, profile, record_function

from partitioner import Parallel
from partitioner.ir.graph import Graph
from partitioner.runtime.pieces import Piece

OP = "op:"


@dataclass(frozen=True)
class Kernels:
    """What an op runs on the device.

    Args:
        seconds: all of its kernels, one after the other.
        filled: the same, each weighed by the part of the device that it has blocks for.
    """

    seconds: float = 0.0
    filled: float = 0.0


@dataclass(frozen=True)
class Limit:
    """The least that a call can take, in seconds.

    Args:
        work: all kernels.
        chain: the longest chain.
        filled: all kernels, each weighed by the part of the device that it fills.
    """

    work: float
    chain: float
    filled: float

    @property
    def seconds(self) -> float:
        """What no order and no number of streams can beat, as far as kernels do not slow each other down."""
        return max(self.chain, self.filled)

    @staticmethod
    def of(graph: Graph, kernels: Mapping[str, Kernels]) -> Limit:
        """The limit of a graph."""
        ends: dict[str, float] = {}
        for op in nx.topological_sort(graph.dag):
            before = max((ends[source] for source in graph.dag.predecessors(op)), default=0.0)
            ends[op] = before + kernels.get(op, Kernels()).seconds
        work, filled = (
            sum(getattr(kernels.get(op.name, Kernels()), name) for op in graph.ops) for name in ("seconds", "filled")
        )
        return Limit(work, max(ends.values(), default=0.0), filled)


def limit(parallel: Parallel, inputs: Inputs) -> Limit:
    """The limit of the program that a call runs."""
    graph, events = traced(parallel, inputs)
    return Limit.of(graph, kernels_of(events, torch.cuda.get_device_properties(0).multi_processor_count))


def traced(parallel: Parallel, inputs: Inputs) -> tuple[Graph, list[dict[str, Any]]]:
    """The graph of a call and the profiler's events of one run of it, its ops called one by one, on one stream."""
    piece, arguments = _piece(parallel, inputs)
    graph = piece.plan.graph
    interpreter = _Named(torch.fx.GraphModule(dict(graph.bodies), graph.fx))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if inputs[0].is_cuda else [])]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        for _ in range(3):
            interpreter.run(*arguments)
        with profile(activities=activities) as profiled:
            interpreter.run(*arguments)
            if inputs[0].is_cuda:
                torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return graph, json.loads(path.read_text())["traceEvents"]


class _Named(torch.fx.Interpreter):
    """Calls each op under its name, for the profiler."""

    def run_node(self, n: torch.fx.Node) -> Any:
        with record_function(f"{OP}{n.name}"):
            return super().run_node(n)


def _piece(parallel: Parallel, inputs: Inputs) -> tuple[Piece, tuple[Any, ...]]:
    """The longest program of a call, with what it is called with."""
    seen: list[tuple[Piece, tuple[Any, ...]]] = []
    call = Piece.__call__

    def noted(piece: Piece, *arguments: Any) -> Any:
        seen.append((piece, arguments))
        return call(piece, *arguments)

    Piece.__call__ = noted  # type: ignore[method-assign]
    try:
        parallel(*inputs)
    finally:
        Piece.__call__ = call  # type: ignore[method-assign]
    return max(seen, key=lambda pair: len(pair[0].plan.graph.ops))


def kernels_of(events: Iterable[Mapping[str, Any]], processors: int) -> dict[str, Kernels]:
    """The kernels of each op, from a trace of the profiler's: a kernel belongs to the op within which it was launched.

    Args:
        events: ``traceEvents`` of a Chrome trace.
        processors: multiprocessors of the device.

    Example:
        >>> op = {"cat": "user_annotation", "name": "op:a", "ts": 0, "dur": 10}
        >>> launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 5, "dur": 1, "args": {"correlation": 7}}
        >>> kernel = {"cat": "kernel", "dur": 4.0, "args": {"correlation": 7, "grid": [8, 2, 1]}}
        >>> kernels_of([op, launch, kernel], processors=32)
        {'a': Kernels(seconds=4e-06, filled=2e-06)}
    """
    events = list(events)
    ops = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(OP))
        for event in events
        if event.get("cat") == "user_annotation" and str(event.get("name", "")).startswith(OP)
    )
    starts = [start for start, _, _ in ops]
    launched: dict[int, str] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {}):
            index = bisect_right(starts, event["ts"]) - 1
            if index >= 0 and event["ts"] <= ops[index][1]:
                launched[event["args"]["correlation"]] = ops[index][2]
    seconds: defaultdict[str, float] = defaultdict(float)
    filled: defaultdict[str, float] = defaultdict(float)
    for event in events:
        op = launched.get(event.get("args", {}).get("correlation", -1))
        if op is not None and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            time = event["dur"] * 1e-6
            seconds[op] += time
            filled[op] += time * share(event["args"].get("grid"), processors)
    return {op: Kernels(seconds[op], filled[op]) for op in seconds}


def share(grid: Iterable[int] | None, processors: int) -> float:
    """The part of the multiprocessors for which a kernel has blocks; a copy needs none.

    Example:
        >>> share([4, 4, 1], 64), share([1000, 1, 1], 64), share(None, 64)
        (0.25, 1.0, 0.0)
    """
    if grid is None:
        return 0.0
    blocks = 1
    for size in grid:
        blocks *= size
    return min(1.0, blocks / processors)
