"""What may change of a schedule in one step: the order in a critical block, or the lane of a critical task.

    critical path   a -> c -> d -> f            f ends last; each starts when the one before it ends
    blocks          [a c d] on one lane, [f]    only a change at the ends of a block can make this path shorter

A node goes before the first or behind the last of its block, the first or the last one some places inwards, or neighbours are
exchanged. Or a task leaves its lane, to where on another one nothing that it waits for, or that waits for it, is in its way.
What comes of it is estimated from heads and tails: only nodes that change places are looked at.

Sources: Nowicki and Smutnicki, "A fast taboo search algorithm for the job shop problem", Management Science 42, 1996; Balas
and Vazacopoulos, "Guided local search with shifting bottleneck for job shop scheduling", Management Science 44, 1998;
Mastrolilli and Gambardella, "Effective neighbourhood functions for the flexible job shop problem", Journal of Scheduling 3,
2000.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from random import Random
from typing import NamedTuple

from partitioner.planner.latency.disjunctive import Disjunctive
from partitioner.planner.latency.selection import Selection

REACH = 10
"""How many places a node moves at most, and how many neighbours within a longer block are exchanged."""

CLOSE = 1e-9
"""A difference that is none."""

MOVED, PLACES = 8, 6
"""Critical tasks that are looked at on other lanes, and places on each of these, of those that are drawn."""


class Turn(NamedTuple):
    """Neighbours on a resource in another order, between ``first`` and ``last``: ``node`` has passed those of ``past``."""

    nodes: Sequence[int]
    first: int
    last: int
    node: int
    past: Sequence[int]
    later: bool


class Way(NamedTuple):
    """A task on another lane.

    Args:
        task: which.
        lane: where.
        ready: when all that it waits for is there.
        length: what it takes.
        rest: what it takes from its end to the end of all.
        seconds: the longest path through it and through what passes for it, about.
    """

    task: int
    lane: int
    ready: float
    length: float
    rest: float
    seconds: float


class Move(NamedTuple):
    """A task on another lane, between two nodes there; how long the longest path through it is then, and its end; about."""

    seconds: float
    task: int
    lane: int
    ahead: int
    behind: int
    end: float


def critical(graph: Disjunctive, random: Random) -> list[list[int]]:
    """The blocks of a longest path, the first one first; one of those that there are."""
    end, length, before, ready, sources = graph.end, graph.length, graph.before, graph.ready, graph.fixed_before
    most = graph.seconds - CLOSE * graph.seconds
    node = random.choice([each for each in graph.final() if end[each] + graph.last[each] >= most])
    blocks, slack = [[node]], CLOSE * graph.seconds
    while True:
        begin = end[node] - length[node] - slack
        ways = [source for source, lag in sources[node] if end[source] + lag >= begin] if ready[node] >= begin else []
        ahead = before[node]
        if ahead >= 0 and end[ahead] >= begin:
            ways.append(ahead)
        if not ways or begin <= 0:
            return [block[::-1] for block in reversed(blocks)]
        node = random.choice(ways) if len(ways) > 1 else ways[0]
        if node == ahead:
            blocks[-1].append(node)
        else:
            blocks.append([node])


def turns(graph: Disjunctive, blocks: Sequence[Sequence[int]], random: Random) -> Iterator[Turn]:
    """Changes of the order within blocks, none of which closes a circle where all nodes take time."""
    before, after, end, tail, ready, rest = graph.before, graph.after, graph.end, graph.tail, graph.ready, graph.rest
    for block in blocks:
        count = len(block)
        if count < 2:
            continue
        begin, close, ahead, behind = block[0], block[-1], before[block[0]], after[block[-1]]
        pairs = {0, count - 2} | set(random.sample(range(count - 1), REACH) if count > REACH else ())
        for place in sorted(pairs):
            one, other = block[place], block[place + 1]
            if all(each != other for each, _ in graph.fixed_after[one]):
                yield Turn((other, one), before[one], after[other], one, (other,), True)
        for away in range(2, min(REACH, count)):
            node, past = block[-1 - away], block[-away:]
            if rest[node] < tail[close] - CLOSE:
                yield Turn((*past, node), before[node], behind, node, past, True)
            if ready[close] < end[node] - CLOSE:
                yield Turn((close, *block[-1 - away : -1]), before[node], behind, close, block[-1 - away : -1], False)
            if away == count - 1:
                break
            node, past = block[away], block[1 : away + 1]
            if rest[begin] < tail[node] - CLOSE:
                yield Turn((*past, begin), ahead, after[node], begin, past, True)
            if ready[node] < end[begin] - CLOSE:
                yield Turn((node, *block[:away]), ahead, after[node], node, block[:away], False)


def estimate(graph: Disjunctive, turn: Turn) -> float:
    """The longest path through what changes places, about: by heads before it and tails behind it as they are."""
    ready, rest, length, at, most = graph.ready, graph.rest, graph.length, 0.0, 0.0
    if turn.first >= 0:
        at = graph.end[turn.first]
    ends = []
    for node in turn.nodes:
        if ready[node] > at:
            at = ready[node]
        at += length[node]
        ends.append(at)
    at = graph.tail[turn.last] if turn.last >= 0 else 0.0
    for node, end in zip(reversed(turn.nodes), reversed(ends), strict=True):
        if rest[node] > at:
            at = rest[node]
        if end + at > most:
            most = end + at
        at += length[node]
    return most


class Lanes:
    """Where else tasks may go, those that are alone in their group; parts that are to be contiguous stay as they are.

    Args:
        graph: the schedule that changes.
        random: which tasks are looked at.
    """

    def __init__(self, graph: Selection, random: Random) -> None:
        self.graph, self.random, problem = graph, random, graph.problem
        self.readers: list[list[tuple[int, int]]] = [[] for _ in problem.tasks]
        for source, target, value in problem.edges if graph.passes else ():
            self.readers[source].append((target, value))
        lanes_of: dict[tuple[int, ...], list[int]] = {}
        self.ways: dict[int, list[int]] = {}
        for group, tasks in problem.members.items() if not problem.contiguous else ():
            able = tuple(problem.able[group])
            if len(tasks) == 1 and able not in lanes_of:
                lanes_of[able] = [lane for lane, home in enumerate(problem.lanes) if home in able]
            if len(tasks) == 1 and len(lanes_of[able]) > 1:
                self.ways[tasks[0]] = lanes_of[able]

    def room(self) -> list[float]:
        """The memory that each processor has left."""
        problem, lanes = self.graph.problem, self.graph.resource
        left = list(problem.caps)
        for group, tasks in problem.members.items():
            left[problem.lanes[lanes[tasks[0]]]] -= problem.demand[group]
        return left

    def __call__(self, blocks: Sequence[Sequence[int]]) -> Iterator[Way]:
        """Other lanes for some tasks of a critical path."""
        tasks = [node for block in blocks for node in block if node in self.ways]
        if not tasks:
            return
        graph, problem = self.graph, self.graph.problem
        room = self.room() if problem.crowded else [inf] * len(problem.processors)
        for task in self.random.sample(tasks, min(len(tasks), MOVED)):
            here, need = problem.lanes[graph.resource[task]], problem.demand[problem.group_of[task]]
            for lane in self.ways[task]:
                there = problem.lanes[lane]
                if lane != graph.resource[task] and (there == here or need <= room[there]):
                    yield self.way(task, lane, problem.seconds[there][task])

    def way(self, task: int, lane: int, length: float) -> Way:
        """What it would be to have a task on a lane, if it had to wait for nothing there."""
        graph, problem = self.graph, self.graph.problem
        if not graph.passes:
            ready, rest = graph.ready[task], graph.rest[task]
            return Way(task, lane, ready, length, rest, ready + length + rest)
        (ready, rest), most = graph.ends(task, lane), 0.0
        for source, value in problem.before[task]:
            sent = graph.sent[value] if value >= 0 else {}
            there, late = self.passing(graph.end[source], graph.resource[source], lane, value, sent)
            ready, most = max(ready, there), max(most, late)
        done = ready + length
        for reader, value in self.readers[task]:
            there, late = self.passing(done, lane, graph.resource[reader], value, {})
            rest, most = max(rest, there - done + graph.tail[reader]), max(most, late)
        return Way(task, lane, ready, length, rest, max(most, done + rest))

    def passing(self, at: float, one: int, other: int, value: int, sent: Mapping[int, int]) -> tuple[float, float]:
        """When what is made on one lane is on another one, and the longest path through what it then comes before on channels.

        Args:
            at: when it is made.
            one: where.
            other: where it is read.
            value: what it is, or less than 0.
            sent: its passages that there are, by their channels.
        """
        if one == other:
            return at, 0.0
        graph, problem, most = self.graph, self.graph.problem, 0.0
        for channel in graph.route(one, other, value):
            if channel in sent:
                at = max(at, graph.end[sent[channel]])
                continue
            line = graph.lines[len(problem.lanes) + channel]
            place = bisect_right(line, at, key=graph.end.__getitem__)
            at += problem.channels[channel].seconds(problem.values[value][1])
            if place < len(line):
                most = max(most, at + graph.tail[line[place]])
        return at + problem.processors[problem.lanes[other]].handoff, most

    def places(self, way: Way) -> Iterator[Move]:
        """Where a task may come on another lane."""
        graph, (task, lane, ready, seconds, rest, least) = self.graph, way
        line, end, tail, length = graph.lines[lane], graph.end, graph.tail, graph.length
        first = min((end[each] - length[each] for each in graph.problem.after[task]), default=inf)
        latest = min(first, graph.seconds - seconds - rest)  # what starts later is behind it, or waits for what waits for it
        low = bisect_right(line, ready + CLOSE, key=end.__getitem__)
        high = bisect_left(line, latest - CLOSE, lo=low, key=lambda each: end[each] - length[each])
        for place in range(low, high + 1) if high - low < PLACES else self.random.sample(range(low, high + 1), PLACES):
            ahead, behind = line[place - 1] if place else -1, line[place] if place < len(line) else -1
            done = max(end[ahead] if place else 0.0, ready) + seconds
            left = max(tail[behind], rest) if behind >= 0 else rest
            yield Move(max(least, done + left), task, lane, ahead, behind, done)
