"""Memory on equal processors: a schedule that has no regard for it, whose lanes exchange what comes after a moment.

    x | a  | b b b | c |        x | a  | e  | f   |       a and d end at about the same time, so nothing is later for it,
    y | d | e  | f    |   ->    y | d | b b b | c |       and x holds e and f instead of b and c

Where caps are just enough, a task that finds room is seldom one that fits the time, and a schedule that grows under the caps
ends with what nobody has room for. Exchanges leave a good schedule nearly as it is, and there are many for each pair of lanes,
so among them are those that share memory out as it must be. Too full a processor has a price meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, log
from random import Random
from time import perf_counter

from partitioner.ir.problem import Problem
from partitioner.planner.latency.quick import Quick, Timed
from partitioner.planner.latency.tries import Found
from partitioner.planner.throughput.overfull import Price
from partitioner.planner.timing import timed

HEAT, COLD = 0.001, 0.1
"""By which part of a makespan an exchange may lengthen it to be kept with probability 1/e, and what is left of that at last."""

FIRST = 0.03
"""Of a makespan, what as many bytes as all tasks hold cost at first: dearer ones are bought with time that is not won back."""

CYCLES = 8
"""How often the search goes on from the best schedule so far."""

LANES = 4
"""Lanes of which the one is taken whose tasks begin and end at about these moments, and whose bytes suit."""

PARTS = 0.5
"""Part of the exchanges that end again before the schedule does."""

TASKS_IN_ALL, FEWEST, MOST_TURNS = 200_000, 40, 10
"""Tasks that exchanges for one problem time together where there is no limit of time, and for how many a smaller problem
counts: an exchange takes its time however few there are; and exchanges for each that is timed."""


def crossed(problem: Problem, known: Found, least: float, until: float = inf, counted: bool = False) -> Found | None:
    """A schedule that keeps the memory caps, by exchanges from one that need not; ``None`` if there was none.

    Args:
        problem: what is scheduled; every task is a group, and nothing travels.
        known: where to begin.
        least: seconds that no schedule beats.
        until: moment, on `time.perf_counter`, at which to stop; infinite: exchanges are counted.
        counted: exchanges are, whatever the time, and are only cut short.
    """
    walk, looked, cycle, least = _Crossing(problem, known), 0, 0, max(least, known.seconds)
    count = len(problem.tasks)
    placements = len(problem.lanes) ** min(count, FEWEST)  # a handful of tasks has been seen through sooner
    most = min(max(1, TASKS_IN_ALL // max(FEWEST, count)), placements) if counted or until == inf else 10**9
    began = perf_counter()
    for turn in range(MOST_TURNS * most):
        passed = max(max(looked, turn / MOST_TURNS) / most, (perf_counter() - began) / max(1e-9, until - began))
        if passed >= 1.0 or (walk.best is not None and walk.best.seconds <= least * (1 + 1e-9)):
            break
        if walk.best is not None and int(passed * CYCLES) > cycle:
            cycle = int(passed * CYCLES)
            walk.take(walk.best)
        looked += walk.step(HEAT * COLD**passed * known.seconds)
    if walk.best is None:
        return None
    return Found.of(timed(problem, walk.best.lanes, walk.best.order), walk.best.order, f"{known.rank}, crossed")


class _Crossing:
    """Where the search is: a schedule, the tasks of each lane as they follow each other, and the bytes of each processor."""

    def __init__(self, problem: Problem, known: Found) -> None:
        self.problem, self.random, self.look, table = problem, Random(0), Quick(problem), problem.seconds
        self.price = Price(FIRST * known.seconds / sum(problem.memory))
        home = list(enumerate(problem.lanes))
        self.ways = [[lane for lane, one in home if one != other and table[one] is table[other]] for _, other in home]
        self.best: Timed | None = None
        order = sorted(range(len(known.order)), key=lambda task: (known.clock.start[task], known.clock.turn[task]))
        self.take(self.look(order, list(known.lanes)))

    def take(self, now: Timed) -> None:
        """Go on from a schedule."""
        self.now, self.held = now, [0.0] * len(self.problem.processors)
        self.lines: list[list[int]] = [[] for _ in self.problem.lanes]
        for task in sorted(now.order, key=now.start.__getitem__):
            self.lines[now.lanes[task]].append(task)
        for lane, line in enumerate(self.lines):
            self.held[self.problem.lanes[lane]] += self.bytes(line)
        self.excess = self.beyond(self.held)
        if not self.excess and (self.best is None or now.seconds < self.best.seconds):
            self.best = now

    def step(self, heat: float) -> bool:
        """One exchange, kept if what becomes worse is little. Whether it was looked at."""
        lane = self.now.lanes[self.random.randrange(len(self.now.lanes))]
        if not self.ways[lane]:
            return False
        _, paid, other, gone, come = min(self.exchanges(lane))
        gate = -heat * log(max(1e-300, self.random.random())) - paid
        if gate < 0:
            return False
        lanes = list(self.now.lanes)
        for task in gone:
            lanes[task] = other
        for task in come:
            lanes[task] = lane
        made = self.look(self.now.order, lanes, self.now)
        if made.seconds - self.now.seconds <= gate:
            self.take(made)
            self.price.note(self.excess > 0)
        return True

    def exchanges(self, lane: int) -> Iterator[tuple[float, float, int, list[int], list[int]]]:
        """Ways to exchange some tasks of a lane that follow each other for what another one has at about the same time.

        Yields:
            How bad a way is, about, and what of that memory pays; the other lane, what goes there, what comes from there.
        """
        line, random, home = self.lines[lane], self.random, self.problem.lanes
        begin = random.randrange(len(line))
        end = random.randint(begin + 1, len(line)) if random.random() < PARTS else len(line)
        start, stop, gone = self.moment(lane, begin), self.moment(lane, end), line[begin:end]
        for other in random.choices(self.ways[lane], k=LANES):
            apart, first = self.nearest(other, start)
            late, last = self.nearest(other, stop, first) if end < len(line) else (0.0, len(self.lines[other]))
            come, held = self.lines[other][first:last], list(self.held)
            more = self.bytes(come) - self.bytes(gone)
            held[home[lane]] += more
            held[home[other]] -= more
            paid = self.price.now * (self.beyond(held) - self.excess)
            yield apart + late + paid, paid, other, gone, come

    def moment(self, lane: int, place: int) -> float:
        """When the task at a place of a lane begins; behind the last, when that ends."""
        line = self.lines[lane]
        if place < len(line):
            return self.now.start[line[place]]
        return self.now.end[line[-1]] if line else 0.0

    def nearest(self, lane: int, at: float, first: int = 0) -> tuple[float, int]:
        """How far from a moment the nearest beginning on a lane is, and its place."""
        return min((abs(self.moment(lane, place) - at), place) for place in range(first, len(self.lines[lane]) + 1))

    def bytes(self, tasks: Sequence[int]) -> float:
        """What tasks hold."""
        return sum(self.problem.memory[task] for task in tasks)

    def beyond(self, held: Sequence[float]) -> float:
        """Bytes of which processors hold more than they have."""
        return sum(max(0.0, own - cap) for own, cap in zip(held, self.problem.caps, strict=True))
