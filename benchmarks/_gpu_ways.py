"""The ways to run a model that `gpu.py` compares, each made from the model and one call, and timed in turns by CUDA events.

Every way takes the caller's arguments and gives results that the caller may keep: what a way has in a graph's memory is copied
in and out. So a replay is timed with its copies, whoever made it.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from partitioner import Parallel, partition
from partitioner.planner.policies.spread import Spread

Inputs = tuple[Tensor, ...]
Call = Callable[[], Any]

LANES = 4
WARM = 4
"""Calls before anything is timed: graphs are captured in the second one, torch.compile records in its third."""

OURS: Mapping[str, dict[str, Any]] = {
    "ours": {},
    "ours, graphs": {"cuda_graphs": True},
    "ours, graphs, spread": {"cuda_graphs": True, "spread": True},
    "ours, graphs, inductor": {"cuda_graphs": True, "compile_tasks": "inductor"},
}
"""What `partition` is asked for, by column; ``spread``: lanes whatever is predicted."""

QUICK = ("eager", "graph", "ours", "ours, graphs", "ours, graphs, spread")
SLOW = ("eager", "graph", "torch.compile", "ours, graphs", "ours, graphs, inductor")
"""Ways that are timed in one round of turns; those of the second one take long to make."""


@dataclass
class Way:
    """One way to run a call.

    Args:
        name: the column.
        call: runs it; its results are the caller's.
        peak: most bytes of tensors that were alive at once, beside the model and its arguments, since it was made.
        held: bytes that stay reserved for it.
        note: what was planned.
        parallel: the module, if it is one of ours.
        milliseconds: of each round.
        graph: of a CUDA graph of one stream, in the same rounds.
    """

    name: str
    call: Call
    peak: int = 0
    held: int = 0
    note: str = ""
    parallel: Parallel | None = None
    milliseconds: list[float] = field(default_factory=list)
    graph: list[float] = field(default_factory=list)


def make(name: str, model: nn.Module, inputs: Inputs) -> Way:
    """A way, warm, and with what it takes of the GPU's memory.

    Raises:
        Exception: it cannot be had for this model; the message is the reason.
    """
    model = copy.deepcopy(model)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    way = _MAKERS[name](model, inputs) if name in _MAKERS else _ours(name, model, inputs)
    for _ in range(WARM):
        way.call()
    torch.cuda.synchronize()
    way.peak = torch.cuda.max_memory_allocated() - allocated
    torch.cuda.empty_cache()
    way.held = torch.cuda.memory_reserved() - reserved
    return way


def _eager(model: nn.Module, inputs: Inputs) -> Way:
    return Way("eager", lambda: model(*inputs))


def _graph(model: nn.Module, inputs: Inputs) -> Way:
    """A CUDA graph of eager's one stream, as one writes it by hand."""
    memory = [tensor.clone() for tensor in inputs]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(*memory)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(*memory)

    def call() -> Any:
        torch._foreach_copy_(memory, list(inputs))
        graph.replay()
        return tree_map_only(Tensor, torch.clone, found)

    return Way("graph", call)


def _compiled(model: nn.Module, inputs: Inputs) -> Way:
    torch._dynamo.reset()
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)

    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return tree_map_only(Tensor, torch.clone, compiled(*inputs))

    return Way("torch.compile", call)


_MAKERS: Mapping[str, Callable[[nn.Module, Inputs], Way]] = {"eager": _eager, "graph": _graph, "torch.compile": _compiled}


def _ours(name: str, model: nn.Module, inputs: Inputs) -> Way:
    parallel = partitioned(model, inputs, str(inputs[0].device), **OURS[name])
    parallel(*inputs)
    if "runs as it is" in str(parallel):
        raise RuntimeError(str(parallel).partition("runs as it is")[2])
    plan = parallel.plan
    lanes = len(set(plan.placement.lane.values()))
    gain = f", {plan.serial / plan.makespan:.2f}x predicted" if plan.serial and plan.makespan else ""
    return Way(name, lambda: parallel(*inputs), note=f"{lanes} lane{'s' * (lanes > 1)}{gain}", parallel=parallel)


def partitioned(model: nn.Module, inputs: Inputs, device: str, **options: Any) -> Parallel:
    """A model on lanes of one device, its ops measured; it shares the model's parameters.

    Raises:
        PartitionerError: it is refused, with the reason.
    """
    spec = {
        "devices": [{"device": device, "lanes": LANES}],
        "policy": Spread() if options.pop("spread", False) else "list",
    }
    return partition(model, example_inputs=inputs, spec=spec, profile="auto", check=False, **options)


def difference(wanted: Any, found: Any) -> float:
    """The largest difference of two results, as a part of the largest value."""
    gaps = [0.0]
    for one, other in zip(tree_leaves(wanted), tree_leaves(found), strict=True):
        one, other = one.detach().float().cpu(), other.detach().float().cpu()
        gaps.append(float((one - other).abs().max() / one.abs().max().clamp(min=1e-6)))
    return max(gaps)


class Flush:
    """Writes more than the second-level cache holds, so that every call starts from memory; or does nothing."""

    def __init__(self, wanted: bool) -> None:
        size = 2 * torch.cuda.get_device_properties(0).L2_cache_size if wanted else 0
        self.memory = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda") if wanted else None

    def __call__(self) -> None:
        """Once before each call that is timed, of every way."""
        if self.memory is not None:
            self.memory.zero_()


def alternate(ways: Sequence[Way], rounds: int, flush: Flush) -> None:
    """Time the ways in turns, forwards and backwards: A B B A. A sample is one call, from an idle device to its end."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            way.call()  # of the same way as what is timed: caches and clocks are its own
            flush()
            torch.cuda.synchronize()
            begin.record()
            way.call()
            end.record()
            end.synchronize()
            way.milliseconds.append(begin.elapsed_time(end))
    for way in ways:
        way.graph = next((one.milliseconds for one in ways if one.name == "graph"), [])


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return (values[0],) * 3
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high
