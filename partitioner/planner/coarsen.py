"""Ops to tasks: what is too short for a hand-off joins a neighbour; what is independent and long stays apart.

Four rules, each of which keeps the task graph acyclic:

1. *Attach*: an op whose result is no tensor (a size, a device) joins the op it asks.
2. *Chain*: an edge whose source has no other successor and whose target no other predecessor is contracted; a skip
   connection over both is no other.
3. *Stray*: what is short, has no neighbours and gives no result, such as a count of batches, joins the op that stands before it
   in the program.
4. *Grain*: of independent tasks with the same neighbours, those shorter than the grain are gathered; what is still shorter
   joins its only predecessor or only successor.

An edge u -> v may be contracted if u has no other successor or v no other predecessor, for then no second path leads from u
to v. Two tasks without a path between them may be merged as well. The grain is what makes the profitability gate: a fork
whose branches are shorter than a hand-off between lanes ends up as one task, and runs serially.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from partitioner.ir.cost import Costs
from partitioner.ir.graph import Graph
from partitioner.ir.task import TaskGraph, group
from partitioner.planner.constraints import Constraints

HANDOFFS_PER_GRAIN = 2.0
"""A task must take this many hand-offs to be worth one of its own: one to send it off, one to fetch its result."""

CAP_SHARE = 16
"""No task holds more state than this fraction of the smallest memory cap, so that a chain can be cut between devices."""


def coarsen(graph: Graph, costs: Costs, constraints: Constraints, grain: float | None = None) -> TaskGraph:
    """Group ops into tasks.

    Args:
        graph: what to group.
        costs: seconds of every op.
        constraints: ops pinned to different devices are never merged.
        grain: seconds under which a task is not worth a launch of its own; ``None`` derives it from the machine's
            hand-off. Without known shapes times mean nothing, and the grain is zero.

    Returns:
        Convex tasks that cover the graph.
    """
    if grain is None:
        handoff = min((device.handoff for device in costs.machine.devices), default=0.0)
        grain = HANDOFFS_PER_GRAIN * handoff if costs.shapes_known else 0.0
    clusters = _Clusters(graph, costs, constraints)
    clusters.attach(graph)
    clusters.chain()
    clusters.take_strays(graph, grain)
    if grain > 0 and len(costs.machine.lanes) > 1:
        clusters.gather(grain)
        clusters.settle(grain)
    return group(graph, clusters.groups(graph))


class _Clusters:
    """Mutable while coarsening: clusters by number, with their neighbours, seconds, bytes of state and pinned device."""

    def __init__(self, graph: Graph, costs: Costs, constraints: Constraints) -> None:
        number = graph.position
        slowest = min(costs.machine.devices, key=lambda device: device.flops)
        caps = [device.memory for device in costs.machine.devices if device.memory is not None]
        self.max_state = min(caps) // CAP_SHARE if caps and len(costs.machine.devices) > 1 else None
        self.after: list[set[int]] = [set() for _ in number]
        self.before: list[set[int]] = [set() for _ in number]
        for source, target in graph.edges:
            self.after[number[source]].add(number[target])
            self.before[number[target]].add(number[source])
        self.parent = list(range(len(number)))
        self.time = [costs.op_time(op.name, slowest) for op in graph.ops]
        self.state = [costs.ops[op.name].state for op in graph.ops]
        self.pin = [constraints.pinned(op.name) for op in graph.ops]

    def find(self, cluster: int) -> int:
        while self.parent[cluster] != cluster:
            self.parent[cluster] = self.parent[self.parent[cluster]]
            cluster = self.parent[cluster]
        return cluster

    def roots(self) -> list[int]:
        return [cluster for cluster, parent in enumerate(self.parent) if cluster == parent]

    def may_merge(self, one: int, other: int) -> bool:
        """Whether pins and memory allow it; that it keeps the graph acyclic is the caller's business."""
        fits = self.max_state is None or self.state[one] + self.state[other] <= self.max_state
        return fits and self.pin[one] == self.pin[other]

    def merge(self, into: int, other: int) -> None:
        """Move ``other`` into ``into``."""
        self.parent[other] = into
        for near, far in ((self.after, self.before), (self.before, self.after)):
            for neighbour in near[other]:
                far[neighbour].discard(other)
                if neighbour != into:
                    far[neighbour].add(into)
                    near[into].add(neighbour)
            near[into].discard(other)
        self.time[into] += self.time[other]
        self.state[into] += self.state[other]
        self.after[other], self.before[other] = set(), set()

    def attach(self, graph: Graph) -> None:
        """Let sizes, devices and dtypes be asked where the tensor is."""
        number = graph.position
        for op in graph.ops:
            asked = {self.find(number[name]) for name in op.inputs if name in number}
            if not op.tensor and not op.state and len(asked) == 1 and self.before[number[op.name]] == asked:
                self.merge(asked.pop(), number[op.name])

    def chain(self) -> None:
        """Contract chains, from the top."""
        for cluster in self.roots():
            cluster = self.find(cluster)
            while (target := self._next_in_chain(cluster)) is not None:
                self.merge(cluster, target)

    def _next_in_chain(self, cluster: int) -> int | None:
        """The successor that has no predecessor but those of ``cluster``, where the same holds for the successors.

        The other edges of the two are skips over them, and order nothing that the chain does not.
        """
        after, before = self.after[cluster], self.before[cluster]
        for target in after:
            skips = len(after) <= len(self.after[target]) + 1 and len(self.before[target]) <= len(before) + 1
            if skips and after - self.after[target] == {target} and self.before[target] - before == {cluster}:
                return target if self.may_merge(cluster, target) else None
        return None

    def gather(self, grain: float) -> None:
        """Gather short tasks with equal neighbours until each gathering is as long as the grain."""
        families: defaultdict[tuple[frozenset[int], frozenset[int]], list[int]] = defaultdict(list)
        for cluster in self.roots():
            if self.time[cluster] < grain:
                families[frozenset(self.before[cluster]), frozenset(self.after[cluster])].append(cluster)
        for family in families.values():
            current = family[0]
            for cluster in family[1:]:
                if self.time[current] < grain and self.may_merge(current, cluster):
                    self.merge(current, cluster)
                else:
                    current = cluster

    def settle(self, grain: float) -> None:
        """Absorb, and contract the chains that this makes, which can leave a short task with one neighbour, and so on."""
        count = 0
        while len(self.roots()) != count:
            count = len(self.roots())
            self.absorb(grain)
            self.chain()

    def absorb(self, grain: float) -> None:
        """Let short tasks join their only neighbour on one side, shortest first, until none can."""
        changed = True
        while changed:
            changed = False
            for cluster in sorted(self.roots(), key=lambda number: (self.time[number], number)):
                if self.parent[cluster] == cluster and self.time[cluster] < grain:
                    changed |= self._join_neighbour(cluster)

    def _join_neighbour(self, cluster: int) -> bool:
        for neighbours in (self.before[cluster], self.after[cluster]):
            if len(neighbours) == 1:
                (neighbour,) = neighbours
                if self.may_merge(neighbour, cluster):
                    self.merge(neighbour, cluster)
                    return True
        return False

    def take_strays(self, graph: Graph, grain: float) -> None:
        """Let short ops that nothing is ordered with, and that give no result, run where they stand in the program."""
        results = {self.find(graph.position[name]) for name in graph.outputs if name in graph.position}
        for cluster in self.roots():
            alone = not self.before[cluster] and not self.after[cluster] and cluster not in results
            if alone and self.time[cluster] < grain:
                near = (self.find(number) for number in (cluster - 1, cluster + 1) if 0 <= number < len(self.parent))
                beside = next((other for other in near if self.may_merge(other, cluster)), cluster)
                if beside != cluster:
                    self.merge(beside, cluster)

    def groups(self, graph: Graph) -> Sequence[list[str]]:
        found: defaultdict[int, list[str]] = defaultdict(list)
        for number, op in enumerate(graph.ops):
            found[self.find(number)].append(op.name)
        return list(found.values())
