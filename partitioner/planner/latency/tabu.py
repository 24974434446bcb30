"""Tabu search on the disjunctive graph: the best change that was not undone lately, whether that is shorter or not.

    62.4   a behind d     60.1  <- the best so far
    60.1   c before b     60.9     a before d: not for some steps
    60.9   e on lane 2    58.8  <- the best so far

A step looks at all changes of a critical path that may be worth anything, and is worth hundreds of moves at random where few
are: on long graphs, on full ones, and where values travel over slow links.

Source: Nowicki and Smutnicki, "A fast taboo search algorithm for the job shop problem", Management Science 42, 1996.
"""

from __future__ import annotations

from math import inf
from random import Random
from time import perf_counter

from partitioner.ir.problem import Problem
from partitioner.planner.latency.blocks import CLOSE, Lanes, Move, Turn, critical, estimate, turns
from partitioner.planner.latency.quick import plain
from partitioner.planner.latency.selection import Selection
from partitioner.planner.latency.tries import Found

TENURE, SPREAD = 10, 0.4
"""Steps for which a change is not undone, beside half of what a resource has to do; and by which part longer, at random."""

QUIET = 2000
"""Steps without a better schedule after which search begins again at the best one, some steps at random away."""

SHAKEN = 3, 20
"""How many these are."""

NOISE = 1e-7
"""By which part of a makespan estimates differ, for equal ones to be drawn at random."""


def searchable(problem: Problem) -> bool:
    """Whether a schedule is a disjunctive graph: lanes share nothing, and processors compute while values travel."""
    return plain(problem) and not problem.stands


def reordered(problem: Problem, known: Found, least: float, until: float, seed: int, most: int) -> Found:
    """A schedule that is no worse than a known one.

    Args:
        problem: that is `searchable`.
        known: where to begin.
        least: seconds that no schedule beats: nothing is left to do there.
        until: when to stop, on `time.perf_counter`.
        seed: of all that is left to chance.
        most: steps.
    """
    if known.seconds <= least * (1 + CLOSE) or perf_counter() > until:
        return known
    tabu = Tabu(problem, known, Random(seed))
    if tabu.run(least, until, most) >= known.seconds:
        return known
    return min(tabu.found(), known, key=lambda each: each.seconds)


class Tabu:
    """Search from one schedule.

    Args:
        problem: that is `searchable`.
        known: where it begins.
        random: all that is left to chance.
    """

    def __init__(self, problem: Problem, known: Found, random: Random) -> None:
        self.graph, self.random, self.rank = Selection(problem, known), random, known.rank
        self.lanes = Lanes(self.graph, random)
        self.tenure = TENURE + len(self.graph.length) / (2 * len(set(self.graph.resource)))
        # by nodes: those of passages that are gone serve others, which may have to wait, too
        self.until: dict[tuple[int, int], int] = {}
        self.best, self.seconds, self.step = self.graph.kept(), self.graph.seconds, 0

    def run(self, least: float, until: float, most: int) -> float:
        """Search on, for some steps at most; the seconds of the best schedule."""
        graph, quiet = self.graph, 0
        for _ in range(most):
            if self.seconds <= least * (1 + CLOSE) or perf_counter() > until:
                break
            self.step += 1
            change = self.choose()
            if change is None:
                break
            self.make(change)
            quiet += 1
            if graph.seconds < self.seconds * (1 - 1e-12):
                self.best, self.seconds, quiet = graph.kept(), graph.seconds, 0
            elif quiet > QUIET:
                quiet = 0
                self.shake()
        return self.seconds

    def choose(self) -> Turn | Move | None:
        """The best change that is allowed; any, where none is; ``None`` where nothing can make the critical path shorter."""
        graph, until, step, noise = self.graph, self.until, self.step, NOISE * self.seconds
        blocks = critical(graph, self.random)
        least, other = inf, list[Turn]()
        best: Turn | Move | None = None
        for turn in turns(graph, blocks, self.random):
            seconds, node = estimate(graph, turn), turn.node
            pairs = ((each, node) if turn.later else (node, each) for each in turn.past)
            if seconds >= self.seconds and any(until.get(each, 0) > step for each in pairs):
                other.append(turn)
                continue
            seconds += noise * self.random.random()
            if seconds < least:
                least, best = seconds, turn
        for way in self.lanes(blocks):
            most = self.seconds if until.get((way.task, ~way.lane), 0) > step else least
            for move in self.lanes.places(way) if way.seconds < most else ():
                if move.seconds < most and move.seconds + noise * self.random.random() < least:
                    least, best = move.seconds, move
        return best or (self.random.choice(other) if other else None)

    def make(self, change: Turn | Move) -> None:
        """Change the schedule, and note what is not to be undone."""
        until = self.step + int(self.tenure * (1 + SPREAD * self.random.random()))
        if isinstance(change, Move):
            self.until[change.task, ~self.graph.resource[change.task]] = until
            self.graph.move(change.task, change.lane, change.ahead, change.behind, change.end)
            return
        made = self.graph.line(change.nodes, change.first, change.last)
        for each in change.past:  # tasks of no length may close a circle: then the change itself is not tried again
            self.until[(change.node, each) if change.later == made else (each, change.node)] = until

    def shake(self) -> None:
        """Go back to the best schedule, and some steps away from it."""
        self.graph.restore(self.best)
        self.until.clear()
        for _ in range(self.random.randint(*SHAKEN)):
            ways = list(turns(self.graph, critical(self.graph, self.random), self.random))
            if not ways:
                break
            self.make(self.random.choice(ways))

    def found(self) -> Found:
        """The best schedule."""
        self.graph.restore(self.best)
        return self.graph.found(f"{self.rank}, and tabu search")
