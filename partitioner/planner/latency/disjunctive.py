"""A schedule as a disjunctive graph: who comes after whom on each lane and channel; heads and tails are longest paths in it.

    lane 0     | a 4 | c 2 |              head of d: 4 + 1 = 5, for it reads what a makes
    channel          |v1|                 tail of a: 4 + 1 + 3 = 8, from its start to the end of all
    lane 1     | b 3 |    | d 3 |         exchange c with a, and only c, a, v and d have other heads

Nodes are tasks and, where values travel while others compute, passages. What follows from the problem and from where tasks
are is *fixed*; the order of those on one resource is what may change. A task may change its lane, too: where something passes
then, all is laid out anew, in the order that there was.

Source: Roy and Sussmann, "Les problemes d'ordonnancement avec contraintes disjonctives", SEMA, 1964.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from partitioner.ir.problem import Problem
from partitioner.planner.latency.tries import Found
from partitioner.planner.timing import Ahead, timed

Kept = tuple[list[int], list[int]]
"""What makes a schedule: the order of all nodes, and the lane of each task."""

Key = tuple[float, float, int]
"""What is first of two nodes neither of which waits for the other: the smaller of these."""


class Disjunctive:
    """A schedule and what it would take to change it.

    Args:
        problem: whose lanes share nothing, and whose processors compute while values travel.
        known: a schedule of it.
    """

    def __init__(self, problem: Problem, known: Found) -> None:
        self.problem, self.count = problem, len(problem.tasks)
        self.resource, self.length = list(known.clock.lane), [0.0] * self.count
        self.passages: list[tuple[int, int]] = []
        self.passage: dict[tuple[int, int], int] = {}
        self.passes = problem.travels or problem.back > 0 or any(each.handoff for each in problem.processors)
        self._lay_out()
        clock = known.clock
        ends = [*clock.end, *(clock.arrived[each] for each in self.passages)]
        key: list[Key] = [(end - each, end, node) for node, (end, each) in enumerate(zip(ends, self.length, strict=True))]
        key[: self.count] = zip(clock.start, clock.end, clock.turn, strict=True)
        self.order = self._sorted(key)
        self._line_up()

    def _lay_out(self) -> None:
        """Who waits for whom, and how long after its end, with tasks where they are; passages are nodes on the way."""
        problem, home, lanes = self.problem, self.problem.lanes, self.resource
        for task in range(self.count):
            self.length[task] = problem.seconds[home[lanes[task]]][task]
        arcs: dict[tuple[int, int], float] = {}
        for task, before in enumerate(problem.before):
            there = home[lanes[task]]
            for source, value in before:
                here, last = home[lanes[source]], source
                for channel in problem.routes.get((here, there), ()) if value >= 0 and here != there else ():
                    node = self._passage(value, channel)
                    if node >= 0:
                        arcs[last, node] = 0.0
                        last = node
                arcs[last, task] = problem.processors[there].handoff if lanes[source] != lanes[task] else 0.0
        nodes = len(self.length)
        self.fixed_before: list[list[tuple[int, float]]] = [[] for _ in range(nodes)]
        self.fixed_after: list[list[tuple[int, float]]] = [[] for _ in range(nodes)]
        for (source, target), lag in arcs.items():
            self.fixed_before[target].append((source, lag))
            self.fixed_after[source].append((target, lag))
        self.release, self.last = [0.0] * nodes, [0.0] * nodes
        for task, lane in enumerate(lanes[: self.count]) if self.passes else ():
            self.release[task] = problem.processors[home[lane]].handoff if lane else 0.0
            self.last[task] = problem.back if lane and not problem.after[task] else 0.0

    def _passage(self, value: int, channel: int) -> int:
        """The node of a value on a channel, which stays its own when it is gone; -1: it takes no time, and is none."""
        node = self.passage.get((value, channel))
        if node is None:
            seconds = self.problem.channels[channel].seconds(self.problem.values[value][1])
            node = self.passage[value, channel] = len(self.length) if seconds else -1
            if seconds:
                self.passages.append((value, channel))
                self.length.append(seconds)
                self.resource.append(len(self.problem.lanes) + channel)
        return node

    def _sorted(self, key: Sequence[Key]) -> list[int]:
        """All tasks and what passes, those that others wait for first, and else by ``key``."""
        waits, after = [len(each) for each in self.fixed_before], self.fixed_after
        ready = [(key[node], node) for node, count in enumerate(waits) if not count and (node < self.count or after[node])]
        heapify(ready)
        order = []
        while ready:
            node = heappop(ready)[1]
            order.append(node)
            for each, _ in after[node]:
                waits[each] -= 1
                if not waits[each]:
                    heappush(ready, (key[each], each))
        return order

    def _line_up(self) -> None:
        """Who is before and after whom on each resource, from the order of all; then heads and tails."""
        nodes = len(self.length)
        self.before, self.after = [-1] * nodes, [-1] * nodes
        self.lines: list[list[int]] = [[] for _ in range(len(self.problem.lanes) + len(self.problem.channels))]
        for node in self.order:
            self.lines[self.resource[node]].append(node)
        for line in self.lines:
            self._link(line, -1, -1)
        self.place, self.marked = [-1] * nodes, bytearray(nodes)
        for place, node in enumerate(self.order):
            self.place[node] = place
        self.end, self.ready = [-1.0] * nodes, [0.0] * nodes
        self.tail, self.rest = [-1.0] * nodes, [0.0] * nodes
        self._heads(self.order, self.order)
        self._tails(self.order, self.order)
        self.seconds = self._makespan()

    def final(self) -> Sequence[int]:
        """The nodes that may end last: the last ones of their resources, and any if the caller waits for what others end."""
        return range(len(self.end)) if self.problem.back else [line[-1] for line in self.lines if line]

    def _makespan(self) -> float:
        return max(map(float.__add__, self.end, self.last)) if self.problem.back else max(self.end)

    def _heads(self, order: Sequence[int], first: Sequence[int]) -> None:
        """When nodes end, and when all that is fixed before them has: of some, and of what follows if they change."""
        end, ready, length, release, marked = self.end, self.ready, self.length, self.release, self.marked
        before, after, sources, targets, left = self.before, self.after, self.fixed_before, self.fixed_after, 0
        for node in first:
            left += not marked[node]
            marked[node] = 1
        for node in order:
            if not marked[node]:
                continue
            marked[node] = 0
            left -= 1
            begin = release[node]
            for source, lag in sources[node]:
                if end[source] + lag > begin:
                    begin = end[source] + lag
            ready[node] = begin
            ahead = before[node]
            if ahead >= 0 and end[ahead] > begin:
                begin = end[ahead]
            begin += length[node]
            if begin != end[node]:
                end[node] = begin
                for each, _ in targets[node]:
                    left += not marked[each]
                    marked[each] = 1
                behind = after[node]
                if behind >= 0:
                    left += not marked[behind]
                    marked[behind] = 1
            if not left:
                break

    def _tails(self, order: Sequence[int], first: Sequence[int]) -> None:
        """Likewise from the end of all: ``tail`` with a node's length, ``rest`` without it and what is next on its resource."""
        tail, rest, length, last, marked = self.tail, self.rest, self.length, self.last, self.marked
        before, after, sources, targets, left = self.before, self.after, self.fixed_before, self.fixed_after, 0
        for node in first:
            left += not marked[node]
            marked[node] = 1
        for node in reversed(order):
            if not marked[node]:
                continue
            marked[node] = 0
            left -= 1
            most = last[node]
            for target, lag in targets[node]:
                if tail[target] + lag > most:
                    most = tail[target] + lag
            rest[node] = most
            behind = after[node]
            if behind >= 0 and tail[behind] > most:
                most = tail[behind]
            most += length[node]
            if most != tail[node]:
                tail[node] = most
                for each, _ in sources[node]:
                    left += not marked[each]
                    marked[each] = 1
                ahead = before[node]
                if ahead >= 0:
                    left += not marked[ahead]
                    marked[ahead] = 1
            if not left:
                break

    def line(self, nodes: Sequence[int], first: int, last: int) -> bool:
        """Put neighbours of one resource in another order, between two others or -1; whether that closes no circle."""
        line = self.lines[self.resource[nodes[0]]]
        place = line.index(first) + 1 if first >= 0 else 0
        kept = line[place : place + len(nodes)]
        self._link(nodes, first, last)
        places = [self.place[each] for each in nodes]
        if not self._sort(min(places), max(places)):
            self._link(kept, first, last)
            return False
        line[place : place + len(nodes)] = nodes
        self._changed([*nodes, last], [*nodes, first])
        return True

    def move(self, task: int, lane: int, ahead: int, behind: int) -> bool:
        """Put a task on another lane, between two others or -1, or near them; whether that closes no circle."""
        if self.passes:
            self._moved(task, lane, ahead, behind)
            return True
        before, after, was, seconds = self.before[task], self.after[task], self.resource[task], self.problem.seconds
        self._link((), before, after)
        self._link((task,), ahead, behind)
        place = self.place[task]
        low = min(place, self.place[behind]) if behind >= 0 else place
        high = max(place, self.place[ahead]) if ahead >= 0 else place
        if not self._sort(low, high):
            self._link((), ahead, behind)
            self._link((task,), before, after)
            return False
        self.lines[was].remove(task)
        self.lines[lane].insert(self.lines[lane].index(ahead) + 1 if ahead >= 0 else 0, task)
        self.resource[task], self.length[task] = lane, seconds[self.problem.lanes[lane]][task]
        self._changed([task, behind, after], [task, ahead, before])
        return True

    def _moved(self, task: int, lane: int, ahead: int, behind: int) -> None:
        """Lay all out anew, with a task on another lane: what passes now comes right behind what it waits for."""
        place = self.place
        key: list[Key] = [(each, 0.0, 0) for each in place]
        key[task] = (place[behind], -1.0, 0) if behind >= 0 else (place[ahead] if ahead >= 0 else place[task], 1.0, 0)
        self.resource[task] = lane
        self._lay_out()
        key += [(0.0, 0.0, 0)] * (len(self.length) - len(key))
        for node, (value, _) in enumerate(self.passages, start=self.count):
            if node >= len(place) or place[node] < 0:
                first, second, _ = key[self.problem.values[value][0]]
                key[node] = (first, second, 1)
        self.order = self._sorted(key)
        self._line_up()

    def _link(self, nodes: Sequence[int], first: int, last: int) -> None:
        for node in nodes:
            self.before[node] = first
            if first >= 0:
                self.after[first] = node
            first = node
        if first >= 0:
            self.after[first] = last
        if last >= 0:
            self.before[last] = first

    def _changed(self, later: Sequence[int], sooner: Sequence[int]) -> None:
        """Heads of some nodes and tails of others change, and with them those of what follows and of what comes before."""
        later, sooner = [each for each in later if each >= 0], [each for each in sooner if each >= 0]
        self._heads(self.order[min(self.place[each] for each in later) :], later)
        self._tails(self.order[: max(self.place[each] for each in sooner) + 1], sooner)
        self.seconds = self._makespan()

    def _sort(self, first: int, last: int) -> bool:
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

    def kept(self) -> Kept:
        """The schedule, for `restore`."""
        return self.order[:], self.resource[: self.count]

    def restore(self, kept: Kept) -> None:
        """Go back to a schedule."""
        self.order, self.resource[: self.count] = kept[0][:], kept[1]
        self._lay_out()
        self._line_up()

    def found(self, rank: str) -> Found:
        """The schedule on the clock, which may have gaps that something fits into."""
        order, early = list[int](), list[tuple[int, int]]()
        ahead: dict[int, list[tuple[int, int]]] = {}
        for node in self.order:
            if node >= self.count:
                early.append(self.passages[node - self.count])
                continue
            if early:
                ahead[node], early = early, []
            order.append(node)
        sent: Ahead = ahead
        return Found.of(timed(self.problem, self.resource[: self.count], order, ahead=sent), order, rank, sent)
