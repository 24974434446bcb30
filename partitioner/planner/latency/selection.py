"""A schedule as a disjunctive graph, which is a complete selection; and what changes in it if a task leaves its lane.

    lane 0     | a |              b to lane 0:    | a | b |         nothing passes, and the node of v is gone
    channel        |v|
    lane 1             | b |

Processors compute while values travel, so a passage is a node on its channels and on no lane.

Source of the word: Roy and Sussmann (`disjunctive.py`), for one arc of each pair that shares a resource.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from partitioner.ir.problem import Problem
from partitioner.planner.latency.disjunctive import Disjunctive, Key
from partitioner.planner.latency.tries import Found
from partitioner.planner.timing import Ahead, timed

Name = tuple[int, int]
"""A value and its channel, or -1 and a task: the numbers of nodes differ from one schedule to the next."""

Kept = tuple[list[Name], list[int]]
"""What makes a schedule: the order of all, and the lane of each task."""


class Selection(Disjunctive):
    """A schedule and what it would take to change it.

    Args:
        problem: whose lanes share nothing, and whose processors compute while values travel.
        known: a schedule of it.
    """

    def __init__(self, problem: Problem, known: Found) -> None:
        super().__init__(len(problem.lanes) + len(problem.channels))
        self.problem, self.count, self.waited = problem, len(problem.tasks), problem.back > 0
        self.passes = problem.travels or problem.back > 0 or any(each.handoff for each in problem.processors)
        self.names: dict[int, Name] = {node: (-1, node) for node in (self.node(0.0, 0) for _ in problem.tasks)}
        self.sent: list[dict[int, int]] = []
        self.come: list[int] = []
        self._lay_out(known.clock.lane)
        clock, nodes = known.clock, range(len(self.length))
        key: list[Key] = list(zip(clock.start, clock.end, clock.turn, strict=True))
        for node in nodes[self.count :]:
            end = clock.arrived[self.names[node]]
            key.append((end - self.length[node], end, node))
        self.sort(key, nodes)

    def _lay_out(self, lanes: Sequence[int]) -> None:
        """Who waits for whom, and how long after its end, with tasks where they are."""
        self.free = list(range(len(self.length) - 1, self.count - 1, -1))
        for node in range(len(self.length)):
            self._clear(node)
        self.sent = [{} for _ in self.problem.values]
        self.resource[: self.count] = lanes
        for task in range(self.count):
            self._settle(task)
            self._await(task)
        self.come.clear()

    def _clear(self, node: int) -> None:
        """Of a node nothing is known."""
        self.fixed_before[node], self.fixed_after[node] = [], []
        self.before[node] = self.after[node] = self.place[node] = -1
        self.end[node] = self.tail[node] = -1.0

    def _settle(self, task: int) -> None:
        """What depends on a task's own lane alone."""
        problem, lane = self.problem, self.resource[task]
        self.length[task] = problem.seconds[problem.lanes[lane]][task]
        self.release[task], self.last[task] = self.ends(task, lane)

    def ends(self, task: int, lane: int) -> tuple[float, float]:
        """Before which moment nobody begins on a lane, and what it takes until the caller knows of a task's end there."""
        problem = self.problem
        begin = problem.processors[problem.lanes[lane]].handoff if lane else 0.0
        return begin, problem.back if lane and not problem.after[task] else 0.0

    def route(self, one: int, other: int, value: int) -> Sequence[int]:
        """The channels that a value, or -1, passes from a lane to another one."""
        here, there = self.problem.lanes[one], self.problem.lanes[other]
        return self.problem.routes.get((here, there), ()) if value >= 0 and here != there else ()

    def _await(self, task: int) -> None:
        """Lay the arcs to a task; what it reads from another processor passes."""
        problem, lane, found = self.problem, self.resource[task], dict[int, float]()
        handoff = problem.processors[problem.lanes[lane]].handoff
        for source, value in problem.before[task]:
            here, last = self.resource[source], source
            for channel in self.route(here, lane, value):
                last = self._passage(value, channel, last)
            found[last] = handoff if here != lane else 0.0
        self.fixed_before[task] = list(found.items())
        for source, lag in found.items():
            self.fixed_after[source].append((task, lag))

    def _passage(self, value: int, channel: int, last: int) -> int:
        """The node of a value on a channel, behind another one; that one itself, where it takes no time."""
        node = self.sent[value].get(channel)
        if node is None:
            seconds = self.problem.channels[channel].seconds(self.problem.values[value][1])
            if not seconds:
                return last
            node = self.sent[value][channel] = self.node(seconds, len(self.problem.lanes) + channel)
            self.names[node] = value, channel
            self.come.append(node)
        if all(each != last for each, _ in self.fixed_before[node]):
            self.fixed_before[node].append((last, 0.0))
            self.fixed_after[last].append((node, 0.0))
        return node

    def move(self, task: int, lane: int, ahead: int, behind: int, end: float) -> None:
        """Put a task on another lane, between two others or -1, or near them where it waits for these or they for it.

        Args:
            task: what moves.
            lane: where to.
            ahead: what is before it there.
            behind: what is after it there.
            end: when it ends then, about.
        """
        later, sooner = {task, behind, self.after[task]}, {task, ahead, self.before[task]}
        self.lines[self.resource[task]].remove(task)
        self.link((), self.before[task], self.after[task])
        self.lines[lane].insert(self.lines[lane].index(ahead) + 1 if ahead >= 0 else 0, task)
        self.link((task,), ahead, behind)
        self.resource[task] = lane
        self._settle(task)
        if self.passes:
            self.end[task] = end
            self._pass_on(task, later, sooner)
        nodes = [task, *self.come]
        self.come.clear()
        first = [*nodes, *(self.after[each] for each in nodes), *(to for each in nodes for to, _ in self.fixed_after[each])]
        last = [*nodes, *(self.before[each] for each in nodes), *(by for each in nodes for by, _ in self.fixed_before[each])]
        if self.mend(min(self.place[each] for each in first if each >= 0), max(self.place[each] for each in last)):
            self.changed(later, sooner)
        else:  # one of those between which it was to be waits for it by another way: the order of all says who is first
            self.sort([(place, 0.0, 0) for place in self.place], list(self.order))

    def _pass_on(self, task: int, later: set[int], sooner: set[int]) -> None:
        """What passes with a task on another lane, and nodes whose heads and tails change with it."""
        tasks = {task, *self.problem.after[task]}
        made = [node for value in self.problem.made[task] for node in self.sent[value].values()]
        left = [source for target in (*tasks, *made) for source in self._leave(target)]
        for value in self.problem.made[task]:
            self.sent[value] = {}
        for target in tasks:
            self._await(target)
        later |= tasks
        sooner.update(left, (source for target in (*tasks, *self.come) for source, _ in self.fixed_before[target]))
        gone = self._drop([node for node in (*left, *made) if node >= self.count], later, sooner)
        self._enter(gone, later, sooner)
        later -= gone
        sooner -= gone
        for node in gone:
            value, channel = self.names[node]
            if self.sent[value].get(channel) == node:
                del self.sent[value][channel]
            self._clear(node)
        self.free += gone

    def _drop(self, nodes: list[int], later: set[int], sooner: set[int]) -> set[int]:
        """Take passages off their channels for which nobody waits, and what they came over; those that are gone."""
        gone = set[int]()
        while nodes:
            node = nodes.pop()
            if node in gone or self.fixed_after[node]:
                continue
            gone.add(node)
            left = self._leave(node)
            nodes += [each for each in left if each >= self.count]
            later.add(self.after[node])
            sooner.update((self.before[node], *left))
            self.lines[self.resource[node]].remove(node)
            self.link((), self.before[node], self.after[node])
        return gone

    def _leave(self, target: int) -> list[int]:
        """A node waits for nobody any more; for whom it did."""
        sources = [source for source, _ in self.fixed_before[target]]
        self.fixed_before[target] = []
        for source in sources:
            self.fixed_after[source] = [each for each in self.fixed_after[source] if each[0] != target]
        return sources

    def _enter(self, gone: set[int], later: set[int], sooner: set[int]) -> None:
        """Put what passes now right behind its maker in the order of all, and on its channel where that has room by then."""
        heirs = defaultdict[int, list[int]](list)
        for node in self.come:
            heirs[self.problem.values[self.names[node][0]][0]].append(node)
        if gone or heirs:
            self.order = [each for node in self.order if node not in gone for each in (node, *heirs.get(node, ()))]
            for place, node in enumerate(self.order):
                self.place[node] = place
        for node in self.come:
            at, line = self.end[self.fixed_before[node][0][0]], self.lines[self.resource[node]]
            place = bisect_right(line, at, key=self.end.__getitem__)
            ahead, behind = line[place - 1] if place else -1, line[place] if place < len(line) else -1
            line.insert(place, node)
            self.link((node,), ahead, behind)
            self.end[node] = at + self.length[node]
            later.update((node, behind))
            sooner.update((node, ahead))

    def kept(self) -> Kept:
        """The schedule, for `restore`."""
        return [self.names[node] for node in self.order], self.resource[: self.count]

    def restore(self, kept: Kept) -> None:
        """Go back to a schedule."""
        self._lay_out(kept[1])
        self.order = [self.sent[value][number] if value >= 0 else number for value, number in kept[0]]
        self.line_up()

    def found(self, rank: str) -> Found:
        """The schedule on the clock, which may have gaps that something fits into."""
        order, early = list[int](), list[Name]()
        ahead: dict[int, list[Name]] = {}
        for node in self.order:
            if node >= self.count:
                early.append(self.names[node])
                continue
            if early:
                ahead[node], early = early, []
            order.append(node)
        sent: Ahead = ahead
        return Found.of(timed(self.problem, self.resource[: self.count], order, ahead=sent), order, rank, sent)
