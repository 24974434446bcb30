"""Where a graph is cut into the stages of a pipeline: contiguous parts of equal work, and what passes each border.

    stage 0   embedding, blocks 0 to 3     3.1 ms
       |      h, mask                               h: read by the next stage; mask: by stage 2, and relayed
    stage 1   blocks 4 to 8                3.3 ms
       |      h, mask
    stage 2   blocks 9 to 11, head         3.2 ms

Cut as by the planner's policy `chain`, for the smallest largest load. A weight that ops far apart read, as tied embeddings are,
does not hold them together: each stage has the weight, and gradients are summed (`ties.py`). Writes hold ops together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import inf
from typing import Literal

import networkx as nx

from partitioner.distributed.pipeline.evenly import cuts_between, evenly, passing
from partitioner.distributed.pipeline.staying import last_ones_last, open_results, sharing_a_stage
from partitioner.errors import PlacementError
from partitioner.frontend.analysis.build import Traced
from partitioner.ir.cost import Costs
from partitioner.ir.graph import Graph
from partitioner.ir.machine import Device, Machine
from partitioner.ir.memory import Memory
from partitioner.ir.problem import Channel, Problem
from partitioner.ir.task import TaskGraph, group
from partitioner.ir.units import format_duration, format_size
from partitioner.planner.constraints import Constraints
from partitioner.planner.cost import estimate
from partitioner.planner.memory import demands
from partitioner.planner.pose import pose
from partitioner.planner.throughput.solve import stages
from partitioner.profile.profiled import profiled

ORDERS = 4
"""Orders of the ops that cuts are looked for along. There is no limit of time: ranks that plan for themselves must agree."""

NEAR = 1e-3
"""What a longest stage may be above what no cut is below, relatively, for cuts along no further order to be looked for."""

EVEN = 1.01
"""A longest stage of so many times the mean is even. Where messages take longer than stages, the planner leaves it at any; and
another one is taken only where what it sends takes no longer than stages, or is no more."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A graph, and the stage of each of its ops.

    Args:
        graph: what was cut.
        stage: by the op's name; no edge leads to an earlier stage.
        seconds: what each stage is expected to take for one microbatch, forwards.
        bound: what the longest stage takes at least, wherever the cuts are.
    """

    graph: Graph
    stage: Mapping[str, int]
    seconds: tuple[float, ...]
    bound: float

    @property
    def count(self) -> int:
        """How many stages there are."""
        return len(self.seconds)

    @property
    def balance(self) -> float:
        """The longest stage over the mean: 1 is even."""
        mean = sum(self.seconds) / self.count
        return max(self.seconds) / mean if mean else 1.0

    @cached_property
    def borders(self) -> tuple[tuple[str, ...], ...]:
        """The values that pass from each stage to the next, relayed ones among them, in the order in which they are made."""
        last = dict.fromkeys((name for name in self.graph.outputs if name in self.stage), self.count - 1)
        for op in self.graph.ops:
            for name in op.inputs:
                if name in self.stage:
                    last[name] = max(last.get(name, 0), self.stage[op.name])
        found: list[list[str]] = [[] for _ in range(self.count - 1)]
        for op in self.graph.ops:
            for border in range(self.stage[op.name], last.get(op.name, -1)):
                found[border].append(op.name)
        return tuple(map(tuple, found))

    @property
    def widest(self) -> int:
        """Bytes of what passes the border at which most does."""
        return max((sum(self.graph.by_name[name].bytes for name in border) for border in self.borders), default=0)

    @cached_property
    def ties(self) -> dict[str, tuple[int, ...]]:
        """The stages of each parameter or buffer that several stages use, by its key."""
        found: defaultdict[str, set[int]] = defaultdict(set)
        for op in self.graph.ops:
            for key in op.state:
                found[key].add(self.stage[op.name])
        return {key: tuple(sorted(stages)) for key, stages in found.items() if len(stages) > 1}

    def __str__(self) -> str:
        ops = [[op for op in self.graph.ops if self.stage[op.name] == number] for number in range(self.count)]
        lines = [f"pipeline of {self.count} stages, the longest {self.balance:.2f} times the mean"]
        for number, (inside, seconds) in enumerate(zip(ops, self.seconds, strict=True)):
            lines.append(
                f"  stage {number}: {len(inside)} ops, {inside[0].name} to {inside[-1].name}, {format_duration(seconds)}"
            )
            if number < self.count - 1:
                size = sum(self.graph.by_name[name].bytes for name in self.borders[number])
                lines.append(f"    passes {format_size(size)}: {', '.join(self.borders[number])}")
        lines += [f"  {key} is in stages {' and '.join(map(str, stages))}" for key, stages in self.ties.items()]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Uncut:
    """A graph that is about to be cut, with all of that which does not depend on into how many stages.

    Args:
        graph: of one microbatch.
        rules: which ops share a stage.
        seconds: what each op takes on the device.
        tasks: each op as one.
        costs: of the ops.
        pair: two stages as a problem.
    """

    graph: Graph
    rules: Constraints
    seconds: Mapping[str, float]
    tasks: TaskGraph
    costs: Costs
    pair: Problem

    @cached_property
    def open(self) -> list[str]:
        """The results whose sizes depend on data: they are made in the last stage."""
        return open_results(self.graph)

    @cached_property
    def row(self) -> Graph:
        """The graph, its ops in the order in which rows of them are cut: the program's, but what is made in the last stage."""
        return replace(self.graph, ops=last_ones_last(self.graph, self.rules)) if self.open else self.graph

    def into(self, count: int, cap: int | None = None, memory: Memory | None = None) -> Cut:
        """Cut it into so many stages, each with so many bytes; see `cut_into`."""
        graph, rules, seconds = self.graph, self.rules, self.seconds
        if count > len(graph.ops):  # refused at once: the problem has as many channels as pairs of stages
            evenly(self.row, rules, seconds, count)
        chosen, bound = stages(self._posed(count, cap, memory), ORDERS, near=NEAR)
        homes = {op: chosen[number] for number, task in enumerate(self.tasks.tasks) for op in task.ops}
        number = _numbered(graph, homes)
        fewer = len(number) < count  # so short that a stage less, and what it need not pass, would be faster
        if fewer or any(number[homes[name]] < count - 1 for name in self.open):
            return self.at(evenly(self.row, rules, seconds, count), bound)
        found = _cut(graph, {op: number[home] for op, home in homes.items()}, seconds, count, bound)
        if memory is not None or found.balance < EVEN or len(cuts_between(self.row.ops, rules)) <= count:
            return found
        longest = max(found.seconds)
        passes = self.pair.channels[0].seconds
        rows = (each for each in self._rows(count, bound) if each.widest <= found.widest or passes(each.widest) <= longest)
        return min((found, *rows), key=lambda cut: max(cut.seconds))

    def longest(self, count: int) -> float:
        """Seconds that no stage is longer than, of as many as `into` makes of it where memory has no cap.

        Raises:
            PlacementError: there are fewer places for cuts.
        """
        passes, rows = self.pair.channels[0].seconds, self._rows(count, 0.0)
        return max(self._even(count), min(max(*each.seconds, passes(each.widest)) for each in rows)) * (1 + 1e-9)

    def _rows(self, count: int, bound: float) -> Iterator[Cut]:
        """Stages along the row of the ops, the longest as short as it can be; and cut only where little enough passes."""
        yield self.at(evenly(self.row, self.rules, self.seconds, count), bound)
        even, passes = self._even(count), self.pair.channels[0].seconds
        narrow = [passes(width) <= even for width in passing(self.row)]
        if not all(narrow):
            with suppress(PlacementError):
                yield self.at(evenly(self.row, self.rules, self.seconds, count, narrow), bound)

    def _even(self, count: int) -> float:
        """Seconds up to which a longest stage is even."""
        return EVEN * sum(self.seconds.values()) / count

    def at(self, ends: Sequence[int], bound: float) -> Cut:
        """Cut it where each stage ends after so many ops in a row."""
        stage = {op.name: bisect_right(ends, place) for place, op in enumerate(self.row.ops)}
        return _cut(self.graph, stage, self.seconds, len(ends), bound)

    def _posed(self, count: int, cap: int | None, memory: Memory | None) -> Problem:
        """The problem of so many stages, each with so much memory."""
        one, passed = self.pair.processors[0], self.pair.channels[0]
        processors = tuple(replace(one, name=f"stage {each}", memory=inf if cap is None else cap) for each in range(count))
        ways = list(permutations(range(count), 2))
        channels = tuple(Channel(f"stage {i} -> stage {j}", passed.bandwidth, passed.latency, (i, j)) for i, j in ways)
        return replace(
            self.pair,
            processors=processors,
            channels=channels,
            routes={way: (number,) for number, way in enumerate(ways)},
            memory=demands(self.tasks, self.costs, memory),
        )


def uncut(traced: Traced, device: Device, profile: Literal["auto", "all"] | None = None) -> Uncut:
    """Make a graph ready to be cut.

    Args:
        traced: the graph of one microbatch.
        device: what each stage runs on.
        profile: which ops are timed here first, as in a spec.
    """
    graph = traced.graph
    first, second = (replace(device, name=f"stage {number}", lanes=1, memory=None) for number in range(2))
    state = traced.state_metas
    costs, rules = profiled(graph, estimate(graph, Machine((first,)), state), profile), sharing_a_stage(graph, state)
    tasks = group(graph, [[op.name] for op in graph.ops])
    pair = replace(pose(tasks, costs, Machine((first, second)), rules, "throughput"), contiguous=True, fetched=False)
    seconds = {op.name: costs.op_time(op.name, first, first.threads_per_lane) for op in graph.ops}
    return Uncut(graph, rules, seconds, tasks, costs, pair)


def cut_into(
    traced: Traced,
    count: int,
    device: Device,
    memory: Memory | None = None,
    profile: Literal["auto", "all"] | None = None,
) -> Cut:
    """Cut a graph into stages.

    Args:
        traced: the graph of one microbatch.
        count: how many stages.
        device: what each stage runs on; its memory is each stage's cap.
        memory: what training keeps beside parameters, which has room under the cap then.
        profile: which ops are timed here first, as in a spec.

    Raises:
        PlacementError: there are fewer places for cuts, or nothing fits the caps.
    """
    return uncut(traced, device, profile).into(count, device.memory, memory)


def _cut(graph: Graph, stage: Mapping[str, int], seconds_of: Mapping[str, float], count: int, bound: float) -> Cut:
    """A cut with the seconds of its stages."""
    seconds = [0.0] * count
    for name, number in stage.items():
        seconds[number] += seconds_of[name]
    return Cut(graph, stage, tuple(seconds), bound)


def _numbered(graph: Graph, homes: Mapping[str, int]) -> dict[int, int]:
    """The number of each processor's stage, along the edges."""
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(dict.fromkeys(homes[op.name] for op in graph.ops))
    order.add_edges_from((homes[one], homes[two]) for one, two in graph.edges if homes[one] != homes[two])
    return {home: number for number, home in enumerate(nx.lexicographical_topological_sort(order, list(order).index))}
