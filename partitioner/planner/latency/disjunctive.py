"""A disjunctive graph: who comes after whom on each resource; heads and tails are longest paths in it.

    lane 0     | a 4 | c 2 |              head of d: 4 + 1 = 5, for it reads what a makes
    channel          |v1|                 tail of a: 4 + 1 + 3 = 8, from its start to the end of all
    lane 1     | b 3 |    | d 3 |         exchange c with a, and only c, a, v and d have other heads

Nodes are numbers. Arcs that are *fixed* have a lag; the order of the nodes on one resource is what may change.

Source: Roy and Sussmann, "Les problemes d'ordonnancement avec contraintes disjonctives", SEMA, 1964.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

Key = tuple[float, float, int]
"""What is first of two nodes neither of which waits for the other: the smaller of these."""

Times = tuple[list[float], list[float], list[float]]
"""Longest paths to each node: with its length; without it and what is on its resource; and what they are at least."""

Arcs = tuple[list[int], list[list[tuple[int, float]]]]
"""Of each node in one direction: its neighbour on its resource, or -1, and what is fixed, with lags."""


class Disjunctive:
    """Nodes, arcs between them, and the order of each resource.

    Args:
        resources: how many there are.
    """

    def __init__(self, resources: int) -> None:
        self.length: list[float] = []
        self.resource: list[int] = []
        self.release: list[float] = []
        self.last: list[float] = []
        self.fixed_before: list[list[tuple[int, float]]] = []
        self.fixed_after: list[list[tuple[int, float]]] = []
        self.place: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
        self.end: list[float] = []
        self.ready: list[float] = []
        self.tail: list[float] = []
        self.rest: list[float] = []
        self.marked, self.order = bytearray(), list[int]()
        self.lines: list[list[int]] = [[] for _ in range(resources)]
        self.seconds, self.free, self.waited = 0.0, list[int](), False

    def node(self, length: float, resource: int) -> int:
        """A node that is not in the order yet: a new one, or one that is gone."""
        if self.free:
            node = self.free.pop()
            self.length[node], self.resource[node] = length, resource
            return node
        for each in (self.release, self.last, self.ready, self.rest):
            each.append(0.0)
        for times in (self.end, self.tail):
            times.append(-1.0)
        for nodes in (self.place, self.before, self.after):
            nodes.append(-1)
        for arcs in (self.fixed_before, self.fixed_after):
            arcs.append([])
        self.length.append(length)
        self.resource.append(resource)
        self.marked.append(0)
        return len(self.length) - 1

    def sort(self, key: Sequence[Key], nodes: Iterable[int]) -> None:
        """Put all nodes in order, those that others wait for first, and else by ``key``; and those of each resource."""
        waits, after = [len(each) for each in self.fixed_before], self.fixed_after
        ready = [(key[node], node) for node in nodes if not waits[node]]
        heapify(ready)
        self.order = []
        while ready:
            node = heappop(ready)[1]
            self.order.append(node)
            for each, _ in after[node]:
                waits[each] -= 1
                if not waits[each]:
                    heappush(ready, (key[each], each))
        self.line_up()

    def line_up(self) -> None:
        """Who is before and after whom on each resource, from the order of all; then heads and tails."""
        for line in self.lines:
            line.clear()
        for place, node in enumerate(self.order):
            self.place[node] = place
            self.lines[self.resource[node]].append(node)
        for line in self.lines:
            self.link(line, -1, -1)
        self.heads(self.order, self.order)
        self.tails(self.order, self.order)
        self.seconds = self.makespan()

    def final(self) -> Sequence[int]:
        """The nodes that may end last: the last ones of their resources, and any if something is waited for at the end."""
        return self.order if self.waited else [line[-1] for line in self.lines if line]

    def makespan(self) -> float:
        """The longest path."""
        return max(map(float.__add__, self.end, self.last)) if self.waited else max(self.end)

    def heads(self, order: Sequence[int], first: Iterable[int]) -> None:
        """When nodes end, and when all that is fixed before them has: of some, and of what follows if they change."""
        forwards = (self.before, self.fixed_before), (self.after, self.fixed_after)
        self._longest(order, first, (self.end, self.ready, self.release), *forwards)

    def tails(self, order: Sequence[int], first: Iterable[int]) -> None:
        """Likewise from the end of all: ``tail`` with a node's length, ``rest`` without it and what is next on its resource."""
        backwards = (self.after, self.fixed_after), (self.before, self.fixed_before)
        self._longest(reversed(order), first, (self.tail, self.rest, self.last), *backwards)

    def _longest(self, order: Iterable[int], first: Iterable[int], times: Times, near: Arcs, far: Arcs) -> None:
        """The longest paths that lead to some nodes, and to those beyond if they change.

        Args:
            order: nodes, each behind those that lead to it.
            first: the nodes.
            times: what is found.
            near: what leads to each node.
            far: where each node leads to.
        """
        (whole, fixed, least), (beside, sources), (beyond, targets) = times, near, far
        length, marked, left = self.length, self.marked, 0
        for node in first:
            left += not marked[node]
            marked[node] = 1
        for node in order:
            if not marked[node]:
                continue
            marked[node] = 0
            left -= 1
            at = least[node]
            for each, lag in sources[node]:
                if whole[each] + lag > at:
                    at = whole[each] + lag
            fixed[node] = at
            each = beside[node]
            if each >= 0 and whole[each] > at:
                at = whole[each]
            at += length[node]
            if at != whole[node]:
                whole[node] = at
                for each, _ in targets[node]:
                    left += not marked[each]
                    marked[each] = 1
                each = beyond[node]
                if each >= 0:
                    left += not marked[each]
                    marked[each] = 1
            if not left:
                break

    def line(self, nodes: Sequence[int], first: int, last: int) -> bool:
        """Put neighbours of one resource in another order, between two others or -1; whether that closes no circle."""
        line = self.lines[self.resource[nodes[0]]]
        place = line.index(first) + 1 if first >= 0 else 0
        kept = line[place : place + len(nodes)]
        self.link(nodes, first, last)
        places = [self.place[each] for each in nodes]
        if not self.mend(min(places), max(places)):
            self.link(kept, first, last)
            return False
        line[place : place + len(nodes)] = nodes
        self.changed([*nodes, last], [*nodes, first])
        return True

    def link(self, nodes: Sequence[int], first: int, last: int) -> None:
        """Make some nodes neighbours, between two others or -1."""
        for node in nodes:
            self.before[node] = first
            if first >= 0:
                self.after[first] = node
            first = node
        if first >= 0:
            self.after[first] = last
        if last >= 0:
            self.before[last] = first

    def changed(self, later: Iterable[int], sooner: Iterable[int]) -> None:
        """Heads of some nodes and tails of others change, and with them those of what follows and of what comes before."""
        later, sooner = [each for each in later if each >= 0], [each for each in sooner if each >= 0]
        self.heads(self.order[min(self.place[each] for each in later) :], later)
        self.tails(self.order[: max(self.place[each] for each in sooner) + 1], sooner)
        self.seconds = self.makespan()

    def mend(self, first: int, last: int) -> bool:
        """Make a part of the order of all topological again, depth first; whether that can be done."""
        part, order, seen = self.order[first : last + 1], list[int](), dict[int, bool]()
        inside, sources, before = set(part), self.fixed_before, self.before
        for root in part:
            stack = [root]
            while stack:
                node = stack[-1]
                if node in seen:
                    stack.pop()
                    if not seen[node]:
                        seen[node] = True
                        order.append(node)
                    continue
                seen[node] = False
                for each in (before[node], *(source for source, _ in sources[node])):
                    if each in inside:
                        if each not in seen:
                            stack.append(each)
                        elif not seen[each]:
                            return False
        self.order[first : last + 1] = order
        for place, node in enumerate(order, start=first):
            self.place[node] = place
        return True
