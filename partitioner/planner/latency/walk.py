"""Local search on the clock: move a task that the end waits for (`planner/latency/moves.py`), and look.

    critical     a -> c -> f     the end of f is that of c and its own time, and so on back to the start

A move that makes the end later is kept at first with some probability, later hardly ever.

Source: Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983.
"""

from __future__ import annotations

from bisect import bisect_right
from math import log
from time import perf_counter

from partitioner.planner.latency.moves import Moves
from partitioner.planner.latency.quick import Quick, Timed
from partitioner.planner.latency.ranks import by_urgency
from partitioner.planner.latency.tries import Found

HEATS = (0.06, 0.01, 0.002)
"""By which part of a makespan a move may make it longer to be kept with probability 1/e, at the beginning of each cycle, which
goes on from the best answer so far. Graphs of tens of tasks need the first; where a task is a small part of the makespan, as in
those of hundreds, only the last finds anything."""

CONTIGUOUS_HEATS = (0.12, 0.03, 0.006)
"""Likewise where parts are contiguous, and most ways from one good answer to another lead over far worse ones."""

COLD = 0.05
"""Part of a cycle's heat that is left at its end."""

SMALL = 500
"""Tasks up to which the time is looked at every few moves only: one takes little of it."""

CRITICAL = 0.7
"""Part of the moves that are made with a task that the end waits for."""


class Walk:
    """Where the search is.

    Args:
        look: times orders of the problem.
        moves: what may be changed.
        known: where it begins.
    """

    def __init__(self, look: Quick, moves: Moves, known: Found) -> None:
        self.problem, self.moves, self.look, self.random = look.problem, moves, look, moves.random
        self.rank = known.rank
        order = by_urgency(look.problem, [-each for each in known.clock.start])
        orders, standing = [list(known.order), order], look.standing
        if standing:
            orders = [standing.joined(known.order, known.ahead, known.lanes), standing.joined(order, {}, known.lanes)]
        ways = [self.look(each, list(known.lanes)) for each in orders]
        self.now = self.best = min(ways, key=lambda each: each.seconds)

    def run(self, least: float, until: float, most: int) -> Timed:
        """Walk on from the best place seen until it is time, with falling heat; the best place seen then."""
        heats = CONTIGUOUS_HEATS if self.problem.contiguous else HEATS
        start, heat, cycle = perf_counter(), heats[0], 0
        self.now = self.best
        often = 16 if len(self.problem.tasks) <= SMALL else 1
        critical, energy = self.critical(), self.energy(self.now)
        for turn in range(most):
            if turn % often == 0:
                at = perf_counter()
                if at >= until:
                    break
                passed = len(heats) * max(turn / most, (at - start) / max(1e-9, until - start))
                if int(passed) > cycle:
                    cycle, self.now = int(passed), self.best
                    critical, energy = self.critical(), self.energy(self.now)
                heat = heats[cycle % len(heats)] * COLD ** (passed % 1.0) * self.best.seconds
            gate = energy - log(max(1e-300, self.random.random())) * heat
            next_ = self.step(critical, gate)
            if next_ is None:
                continue
            felt = self.energy(next_)
            if felt <= gate:
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
        return here.seconds + sum(last) / len(last)

    def critical(self) -> list[tuple[int, int]]:
        """The tasks of one chain that the end waits for, last first; each with the task whose lane it waits for, or -1."""
        now = self.now
        lines: list[list[int]] = [[] for _ in self.problem.lanes]
        for task in sorted(range(len(now.end)), key=now.end.__getitem__):
            lines[now.lanes[task]].append(task)
        task = max(range(len(now.end)), key=now.end.__getitem__)
        chain: list[tuple[int, int]] = []
        while task >= 0 and len(chain) < len(now.end):
            ahead = -1
            if now.start[task] > now.ready[task]:
                line = lines[now.lanes[task]]
                place = bisect_right(line, now.start[task] + 1e-12, key=now.end.__getitem__) - 1
                ahead = line[place] if place >= 0 and line[place] != task else -1
            chain.append((task, ahead))
            task = ahead if ahead >= 0 else now.cause[task]
        return chain

    def step(self, critical: list[tuple[int, int]], gate: float) -> Timed | None:
        """One move, looked at; ``None`` if it was none, or if its energy is above ``gate`` and nothing is won."""
        random = self.random
        task, ahead = random.choice(critical) if random.random() < CRITICAL else (random.randrange(len(self.now.end)), -1)
        found = self.moves(self.now.order, self.now.lanes, task, ahead)
        return found and self.look.within(*found, self.now, gate, self.best.seconds)
