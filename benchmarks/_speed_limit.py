"""What lanes can give at most: work and critical path of a model, from seconds of its ops in the model itself.

    W    seconds of all ops, each alone on one thread
    CP   seconds of the longest chain of ops that must wait for each other
    S    at most min(lanes, W / CP), over one thread

An op is timed where it stands, on the model's own values and with the caches as the ops before it have left them.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from partitioner import partition
from partitioner.backends import BACKENDS
from partitioner.frontend.check.interpret import interpret
from partitioner.ir.dag import critical_path
from partitioner.ir.plan import Plan
from partitioner.model.modes import threads
from partitioner.model.node import call_node
from partitioner.planner.simulate import simulate

STOPWATCH = "stopwatch"

WARM, PASSES = 1, 7
"""Calls that nobody times, and those that are timed."""


@dataclass(frozen=True)
class Limit:
    """Work and critical path in seconds, and the seconds of each op by its name."""

    work: float
    path: float
    seconds: Mapping[str, float]

    def speedup(self, lanes: int) -> float:
        """How many times as fast as one thread so many lanes can be.

        >>> Limit(3.0, 2.0, {}).speedup(2)
        1.5
        """
        return min(float(lanes), self.work / self.path)

    def told(self, name: str, lanes: int) -> str:
        """A line for people."""
        bound = self.speedup(lanes)
        return f"{name}: W {self.work * 1e3:.3g} ms, CP {self.path * 1e3:.3g} ms, limit {bound:.2f}x over one thread"

    def simulated(self, plan: Plan) -> float:
        """Seconds that a plan is expected to take if its ops take what was measured here with one thread."""
        known = plan.costs.ops.keys() & self.seconds.keys()
        measured = {(op, device.name, 1): self.seconds[op] for op in known for device in plan.machine.devices}
        return simulate(plan.program, replace(plan.costs, measured=measured), plan.tasks, plan.placement).makespan


class Stopwatch:
    """A backend that runs a graph op by op on the caller's thread, and notes how long each takes in each call."""

    code = ""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.found: defaultdict[str, list[float]] = defaultdict(list)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The graph's results."""
        return interpret(self.plan.graph, arguments, self.timed)

    def timed(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        """An op's result."""
        start = time.perf_counter()
        result = call_node(node, args, kwargs)
        self.found[node.name].append(time.perf_counter() - start)
        return result


@contextmanager
def stopwatches() -> Iterator[list[Stopwatch]]:
    """A block in which there is a backend `STOPWATCH`; what it makes is found in the list."""
    made: list[Stopwatch] = []

    def make(plan: Plan) -> Stopwatch:
        made.append(Stopwatch(plan))
        return made[-1]

    BACKENDS[STOPWATCH] = make
    try:
        yield made
    finally:
        del BACKENDS[STOPWATCH]


def limit_of(model: nn.Module, inputs: tuple[Tensor, ...], passes: int = PASSES) -> Limit:
    """Time the ops of one call with one thread. Where Python comes between graphs, they follow each other."""
    with stopwatches() as watches, threads(1):
        parallel = partition(
            copy.deepcopy(model), ["cpu"], example_inputs=inputs, policy="single", backend=STOPWATCH, check=False
        )
        for _ in range(WARM):
            parallel(*inputs)
        for watch in watches:
            watch.found.clear()
        for _ in range(passes):
            parallel(*inputs)
    seconds = [{op: statistics.median(each) for op, each in watch.found.items()} for watch in watches]
    paths = [critical_path(watch.plan.graph.dag, found.__getitem__)[0] for watch, found in zip(watches, seconds, strict=True)]
    together = {op: value for found in seconds for op, value in found.items()}
    return Limit(sum(sum(found.values()) for found in seconds), sum(paths), together)
