"""Local search on the clock: move a task that the end waits for, to another lane or to another place in the order, and look.

    critical     a -> c -> f     the end of f is that of c and its own time, and so on back to the start
    moves        c to lane 1     c before b     the group of c and that of d change processors

A move that makes the end later is kept at first with some probability, later hardly ever (simulated annealing). Where lanes are
all the same and nothing passes between them, an order is all there is to look for: every task has the lane that suits best.

Sources: Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983; moves of critical tasks as in
Nowicki and Smutnicki, "A fast taboo search algorithm for the job shop problem", Management Science 42(6), 1996.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf, log
from random import Random
from time import perf_counter

from partitioner.ir.problem import Problem
from partitioner.planner.latency.packing import keeps
from partitioner.planner.latency.quick import Quick, Timed
from partitioner.planner.latency.ranks import by_urgency
from partitioner.planner.latency.tries import Found
from partitioner.planner.timing import timed

HEATS = (0.06, 0.01, 0.002)
"""By which part of a makespan a move may make it longer to be kept with probability 1/e, at the beginning of each cycle, which
goes on from the best answer so far. Graphs of tens of tasks need the first; where a task is a small part of the makespan, as in
those of hundreds, only the last finds anything."""

COLD = 0.05
"""Part of a cycle's heat that is left at its end."""

MOVED_IN_ALL, MOST_MOVED = 24_000, 200
"""Tasks that a few moves for one problem time together, and the largest problem that gets any."""

SMALL = 500
"""Tasks up to which the time is looked at every few moves only: one takes little of it."""

CRITICAL = 0.7
"""Part of the moves that are made with a task that the end waits for."""

WHOLE = 0.35
"""Part of the moves between processors, where parts are contiguous, that leave alone what is behind and before a task."""

PULLS, BOTH = 0.4, 0.7
"""Parts of the moves: up to the first, in the order; up to the second, to other lanes; the rest, both."""


def improved(problem: Problem, known: Found, least: float, until: float, seed: int, most: int = 10**9) -> Found:
    """A schedule that is no worse than a known one.

    Args:
        problem: what is scheduled.
        known: where to begin.
        least: seconds that no schedule beats: nothing is left to do there.
        until: when to stop, on `time.perf_counter`.
        seed: of all that is left to chance.
        most: moves, in all.
    """
    if len(problem.tasks) < 2 or len(problem.lanes) < 2:
        return known
    walk = _Walk(problem, known, Random(seed))
    best = walk.run(least, until, most)
    if best.seconds >= known.seconds:
        return known
    clock = timed(problem, best.lanes, best.order)
    found = Found.of(clock, best.order, f"{known.rank}, and local search")
    return min(found, known, key=lambda each: each.seconds)


def soon_improved(problem: Problem, known: Found, least: float, until: float = inf) -> Found:
    """Likewise, after as many moves as milliseconds allow: counted and not timed, for it to be the same on every machine."""
    count = max(1, len(problem.tasks))
    if count > MOST_MOVED or known.seconds <= least * (1 + 1e-9):
        return known
    return improved(problem, known, least, until, seed=0, most=MOVED_IN_ALL // count)


class _Walk:
    """Where the search is."""

    def __init__(self, problem: Problem, known: Found, random: Random) -> None:
        self.problem, self.random = problem, random
        self.look = Quick(problem)
        self.sources = [sorted({source for source, _ in before}) for before in problem.before]
        order = by_urgency(problem, [-each for each in known.clock.start])
        ways = [self.look(each, list(known.lanes)) for each in (list(known.order), order)]
        self.now = self.best = min(ways, key=lambda each: each.seconds)
        self.able = problem.able
        self.lanes_of = [
            list(range(first, first + each.lanes)) for first, each in zip(problem.first_lane, problem.processors, strict=True)
        ]
        self.tight = problem.contiguous or sum(problem.demand.values()) > min(each.memory for each in problem.processors)

    def run(self, least: float, until: float, most: int) -> Timed:
        """Walk until it is time; the best place seen."""
        start, heat, cycle = perf_counter(), HEATS[0], 0
        often = 16 if len(self.sources) <= SMALL else 1
        critical, energy = self.critical(), self.energy(self.now)
        for turn in range(most):
            if turn % often == 0:
                at = perf_counter()
                if at >= until:
                    break
                passed = len(HEATS) * max(turn / most, (at - start) / max(1e-9, until - start))
                if int(passed) > cycle:
                    cycle, self.now = int(passed), self.best
                    critical, energy = self.critical(), self.energy(self.now)
                heat = HEATS[cycle % len(HEATS)] * COLD ** (passed % 1.0) * self.best.seconds
            next_ = self.step(critical)
            if next_ is None:
                continue
            felt = self.energy(next_)
            if felt <= energy or felt - energy < -log(max(1e-300, self.random.random())) * heat:
                self.now, energy = next_, felt
                critical = self.critical()
            if next_.seconds < self.best.seconds * (1 - 1e-12):
                self.best = next_
                if next_.seconds <= least * (1 + 1e-9):
                    break
        return self.best

    def energy(self, here: Timed) -> float:
        """What the search makes small: the makespan, and when lanes are through on average, which sees what it does not."""
        last = [0.0] * len(self.problem.lanes)
        for end, lane in zip(here.end, here.lanes, strict=True):
            if end > last[lane]:
                last[lane] = end
        return here.seconds + (0.0 if self.look.uniform else sum(last) / len(last))

    def critical(self) -> list[tuple[int, int]]:
        """The tasks of one chain that the end waits for, last first; each with the task whose lane it waits for, or -1."""
        now = self.now
        lines: list[list[tuple[float, int]]] = [[] for _ in self.problem.lanes]
        for task, lane in enumerate(now.lanes):
            lines[lane].append((now.end[task], task))
        for line in lines:
            line.sort()
        task = max(range(len(now.end)), key=now.end.__getitem__)
        chain: list[tuple[int, int]] = []
        while task >= 0 and len(chain) < len(now.end):
            ahead = -1
            if now.start[task] > now.ready[task]:
                line = lines[now.lanes[task]]
                place = bisect_right(line, (now.start[task] + 1e-12, len(now.end))) - 1
                ahead = line[place][1] if place >= 0 and line[place][1] != task else -1
            chain.append((task, ahead))
            task = ahead if ahead >= 0 else now.cause[task]
        return chain

    def step(self, critical: list[tuple[int, int]]) -> Timed | None:
        """One move, looked at; ``None`` if it was none."""
        random = self.random
        task, ahead = random.choice(critical) if random.random() < CRITICAL else (random.randrange(len(self.sources)), -1)
        order, lanes = list(self.now.order), list(self.now.lanes)
        kind = random.random()
        if self.look.uniform or kind < PULLS:
            pulled = self.pull(order, task, ahead if ahead >= 0 and random.random() < 0.5 else self.other(order, lanes, task))
            return self.look(pulled, lanes) if pulled else None
        if not self.move(lanes, task):
            return None
        if kind > BOTH:
            order = self.pull(order, task, self.other(order, lanes, task)) or order
        return self.look(order, lanes)

    def other(self, order: list[int], lanes: Sequence[int], task: int) -> int:
        """A task near another one in the order, on the same lane if there is one."""
        place = order.index(task)
        reach = max(4, len(order) // 4)
        near = order[max(0, place - reach) : place + reach]
        if not self.look.uniform:
            near = [each for each in near if lanes[each] == lanes[task]] or near
        return self.random.choice(near)

    def pull(self, order: list[int], task: int, ahead: int) -> list[int] | None:
        """``task`` just before ``ahead``, or the other way round if it is before it; with what it waits for in between.

        Returns:
            The order; ``None`` if one of the two waits for the other.
        """
        first, last = order.index(ahead), order.index(task)
        if first > last:
            first, last = last, first
        if first == last:
            return None
        needed, kept = {order[last]}, []
        early = []
        for each in reversed(order[first : last + 1]):
            if each in needed:
                early.append(each)
                needed.update(self.sources[each])
            else:
                kept.append(each)
        if order[first] in needed:
            return None
        return [*order[:first], *reversed(early), *reversed(kept), *order[last + 1 :]]

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
        piece = self.piece(lanes, task)
        if any(there not in self.able[each] for each in piece):
            return False
        for each in piece:
            self.send(lanes, each, there)
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

    def piece(self, lanes: Sequence[int], task: int) -> list[int]:
        """The groups that move with a task: its own and, half of the time where parts are contiguous, all behind or before it.

        What is left stays in one piece then, as after a cut that moves along.
        """
        problem, home = self.problem, self.problem.lanes
        group, here = problem.group_of, home[lanes[task]]
        if not problem.contiguous or self.random.random() < WHOLE:
            return [group[task]]
        ways: Sequence[Sequence[int]] = problem.after if self.random.random() < 0.5 else self.sources
        found, edge = {task}, [task]
        while edge:
            for each in ways[edge.pop()]:
                if each not in found and home[lanes[each]] == here:
                    found.add(each)
                    edge.append(each)
        return sorted({group[each] for each in found})

    def send(self, lanes: list[int], group: int, processor: int) -> None:
        """Send a group to a processor, each task to any of its lanes."""
        for member in self.problem.members[group]:
            lanes[member] = self.random.choice(self.lanes_of[processor])

    def allowed(self, lanes: Sequence[int]) -> bool:
        """Whether memory caps and contiguity are kept."""
        problem = self.problem
        return keeps(problem, {group: problem.lanes[lanes[tasks[0]]] for group, tasks in problem.members.items()})
