"""Local search on the clock: move a task that the end waits for, to another lane or to another place in the order, and look.

    critical     a -> c -> f     the end of f is that of c and its own time, and so on back to the start
    moves        c to lane 1     c before b     the group of c and that of d change processors

A move that makes the end later is kept at first with some probability, later hardly ever (simulated annealing). Where lanes are
all the same and nothing passes between them, an order is all there is to look for: every task has the lane that suits best.

Sources: Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983; moves of critical tasks as in
Nowicki and Smutnicki, "A fast taboo search algorithm for the job shop problem", Management Science 42(6), 1996.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from random import Random
from time import perf_counter

from partitioner.ir.problem import Problem
from partitioner.planner.latency.packing import keeps
from partitioner.planner.latency.ranks import by_urgency
from partitioner.planner.latency.tries import Found
from partitioner.planner.timing import timed

HOT, COLD = 0.02, 0.0005
"""By which part of a makespan a move may make it longer to be kept with probability 1/e: at first, and at last."""

CRITICAL = 0.7
"""Part of the moves that are made with a task that the end waits for."""


@dataclass(frozen=True)
class Timed:
    """An order and lanes, and what comes of them."""

    seconds: float
    order: list[int]
    lanes: Sequence[int]
    start: Sequence[float]
    end: Sequence[float]


def improved(problem: Problem, known: Found, least: float, until: float, seed: int) -> Found:
    """A schedule that is no worse than a known one.

    Args:
        problem: what is scheduled.
        known: where to begin.
        least: seconds that no schedule beats: nothing is left to do there.
        until: when to stop, on `time.perf_counter`.
        seed: of all that is left to chance.
    """
    if len(problem.tasks) < 2 or len(problem.lanes) < 2:
        return known
    walk = _Walk(problem, known, Random(seed))
    best = walk.run(least, until)
    if best.seconds >= known.seconds:
        return known
    clock = timed(problem, best.lanes, best.order)
    found = Found.of(clock, best.order, "local search")
    return min(found, known, key=lambda each: each.seconds)


def uniform(problem: Problem) -> bool:
    """Whether one lane is as good as another for every task, wherever the others are."""
    return (
        len(set(map(id, problem.seconds))) == 1
        and not any(problem.routes.values())
        and not any(each.handoff or (each.lanes > 1 and problem.kinds[each.kind].share) for each in problem.processors)
        and all(problem.kinds[each.kind].issue is None for each in problem.processors)
        and not problem.contiguous
        and not problem.pin
        and len(problem.members) == len(problem.tasks)
        and sum(problem.demand.values()) <= min(each.memory for each in problem.processors)
    )


class _Walk:
    """Where the search is."""

    def __init__(self, problem: Problem, known: Found, random: Random) -> None:
        self.problem, self.random = problem, random
        self.uniform = uniform(problem)
        self.sources = [sorted({source for source, _ in before}) for before in problem.before]
        self.readers = [sorted(set(after)) for after in problem.after]
        order = by_urgency(problem, [-each for each in known.clock.start])
        self.now = self.best = self.look(list(known.order), list(known.lanes))
        other = self.look(order, list(known.lanes))
        if other.seconds <= self.now.seconds:
            self.now = self.best = other
        self.able = {group: problem.able(group) for group in problem.members}
        self.lanes_of = [
            list(range(first, first + each.lanes)) for first, each in zip(problem.first_lane, problem.processors, strict=True)
        ]
        self.tight = problem.contiguous or sum(problem.demand.values()) > min(each.memory for each in problem.processors)

    def run(self, least: float, until: float) -> Timed:
        """Walk until it is time; the best place seen."""
        start, turn, heat = perf_counter(), 0, HOT
        critical = self.critical()
        quiet = 0
        while self.best.seconds > least * (1 + 1e-9):
            if turn % 16 == 0:
                at = perf_counter()
                if at >= until:
                    break
                heat = HOT * (COLD / HOT) ** ((at - start) / max(1e-9, until - start))
            turn += 1
            next_ = self.step(critical)
            if next_ is None:
                continue
            worse = next_.seconds - self.now.seconds
            if worse <= 0 or worse < -log(max(1e-300, self.random.random())) * heat * self.now.seconds:
                self.now = next_
                critical = self.critical()
            quiet += 1
            if next_.seconds < self.best.seconds * (1 - 1e-12):
                self.best, quiet = next_, 0
            elif quiet > 400 + 20 * len(self.sources):
                self.now, quiet = self.best, 0
                critical = self.critical()
        return self.best

    def critical(self) -> list[int]:
        """The tasks of one chain that the end waits for, last first."""
        end, start, lanes = self.now.end, self.now.start, self.now.lanes
        before: dict[int, list[tuple[float, int]]] = {}
        for task, lane in enumerate(lanes):
            before.setdefault(lane, []).append((end[task], task))
        for each in before.values():
            each.sort()
        task = max(range(len(end)), key=end.__getitem__)
        chain = [task]
        while len(chain) < len(end):
            here = before[lanes[task]]
            place = bisect_right(here, (start[task], len(end))) - 1
            waits = [(end[source], source) for source in self.sources[task]]
            if place >= 0 and here[place][1] != task:
                waits.append(here[place])
            waits = [each for each in waits if each[1] != task and end[each[1]] <= start[task] + 1e-12]
            if not waits:
                break
            task = max(waits)[1]
            chain.append(task)
        return chain

    def step(self, critical: list[int]) -> Timed | None:
        """One move, looked at; ``None`` if it was none."""
        random = self.random
        task = random.choice(critical) if random.random() < CRITICAL else random.randrange(len(self.sources))
        order, lanes = list(self.now.order), list(self.now.lanes)
        kind = random.random()
        if self.uniform or kind < 0.4:
            if not self.shift(order, task):
                return None
        else:
            if not self.move(lanes, task):
                return None
            if kind > 0.7:
                self.shift(order, task)
        return self.look(order, lanes)

    def shift(self, order: list[int], task: int) -> bool:
        """Put a task elsewhere between its last predecessor and its first successor."""
        place = order.index(task)
        sources, readers = self.sources[task], self.readers[task]
        low = high = place
        while low > 0 and order[low - 1] not in sources:
            low -= 1
        while high + 1 < len(order) and order[high + 1] not in readers:
            high += 1
        if low == high:
            return False
        near = max(2, len(order) // 8)
        chosen = self.random.randint(max(low, place - near), min(high, place + near))
        if chosen == place:
            return False
        del order[place]
        order.insert(chosen, task)
        return True

    def move(self, lanes: list[int], task: int) -> bool:
        """Give a task another lane, and its group, where it goes to another processor; there, perhaps, in exchange."""
        problem, home, random = self.problem, self.problem.lanes, self.random
        group, here = problem.group_of[task], home[lanes[task]]
        ways = [lane for processor in self.able[group] for lane in self.lanes_of[processor] if lane != lanes[task]]
        if not ways:
            return False
        lane = random.choice(ways)
        there = home[lane]
        if there == here:
            lanes[task] = lane
            return True
        self.send(lanes, group, there)
        lanes[task] = lane
        if not self.tight or self.allowed(lanes):
            return True
        others = [each for each, tasks in problem.members.items() if home[lanes[tasks[0]]] == there and each != group]
        if not others:
            return False
        other = random.choice(others)
        if here not in self.able[other]:
            return False
        self.send(lanes, other, here)
        return self.allowed(lanes)

    def send(self, lanes: list[int], group: int, processor: int) -> None:
        """Send a group to a processor, each task to any of its lanes."""
        for member in self.problem.members[group]:
            lanes[member] = self.random.choice(self.lanes_of[processor])

    def allowed(self, lanes: Sequence[int]) -> bool:
        """Whether memory caps and contiguity are kept."""
        problem = self.problem
        return keeps(problem, {group: problem.lanes[lanes[tasks[0]]] for group, tasks in problem.members.items()})

    def look(self, order: list[int], lanes: list[int]) -> Timed:
        """What comes of an order and lanes."""
        if self.uniform:
            return self.alike(order)
        clock = timed(self.problem, lanes, order)
        return Timed(clock.makespan, order, lanes, clock.start, clock.end)

    def alike(self, order: list[int]) -> Timed:
        """What comes of an order where lanes are all the same: the lane that is free the latest in time, or else the first."""
        seconds, count = self.problem.seconds[0], len(self.sources)
        start, end, lanes = [0.0] * count, [0.0] * count, [0] * count
        free = [(0.0, lane) for lane in range(len(self.problem.lanes))]
        for task in order:
            ready = 0.0
            for source in self.sources[task]:
                if end[source] > ready:
                    ready = end[source]
            at, lane = free.pop(max(0, bisect_right(free, (ready, inf)) - 1))
            start[task] = begin = at if at > ready else ready
            end[task] = until = begin + seconds[task]
            lanes[task] = lane
            insort(free, (until, lane))
        return Timed(max(end), order, lanes, start, end)
