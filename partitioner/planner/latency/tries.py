"""Several schedules by rank, the best kept: with an eye to processors' time, forwards and backwards in turns.

forwards    1 as it is 12.1 ms      2 sparing 11.9 ms  <- so far the best
backwards   3 from 2   11.7 ms      4 from 3  11.6 ms
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from math import inf
from time import perf_counter

import numpy as np

from partitioner.errors import PlacementError
from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.latency.bounds import longest_path
from partitioner.planner.latency.build import earliest, mirrored
from partitioner.planner.latency.homes import Homes
from partitioner.planner.latency.ranks import awaited, by_rank, by_urgency, upward
from partitioner.planner.prices import able_seconds, least_work, waste
from partitioner.planner.timing import Ahead, Clock, timed

SPARING = (4.0, 0.0, 16.0)
"""How many times what a task wastes on a processor is added to its end there before ends are compared, beside the factor that
is fitted to how full processors are (`thrift`)."""

MOST_TIMES = 64.0
"""The largest factor that is fitted."""

LUMP = 16
"""A problem is lumpy where this many times the work of one group is more than a lane has to do on average."""

TASKS_IN_ALL = 1500
"""Tasks that the tries for one problem place together, but for the first try."""


MOST_AT_ONCE = 20_000
"""Tasks up to which values are also sent as soon as they are made, where processors stand still meanwhile."""


@dataclass(frozen=True, eq=False)
class Found:
    """A schedule.

    Args:
        seconds: its makespan.
        lanes: the lane of each task.
        order: in which the clock was given the tasks.
        clock: the clock after them.
        rank: by which rank it was made.
        ahead: what travels before tasks have their turn.
    """

    seconds: float
    lanes: Sequence[int]
    order: Sequence[int]
    clock: Clock
    rank: str
    ahead: Ahead = field(default_factory=dict)

    @staticmethod
    def of(clock: Clock, order: Sequence[int], rank: str, ahead: Ahead | None = None) -> Found:
        """What a clock has timed in ``order``."""
        return Found(clock.makespan, list(clock.lane), order, clock, rank, ahead or {})


def tries_for(problem: Problem, most: int) -> int:
    """How many schedules a problem of its size gets, of ``most``."""
    return max(1, min(most, TASKS_IN_ALL // max(1, len(problem.tasks))))


def best_of(problem: Problem, homes: Homes, tries: int, until: float = inf) -> Found:
    """The best of some schedules; with one try, that by upward rank. See `several`."""
    return several(problem, homes, tries, until)[0]


def several(problem: Problem, homes: Homes, tries: int, until: float = inf, answers: Sequence[Assignment] = ()) -> list[Found]:
    """Some schedules, the best first.

    Args:
        problem: what is scheduled.
        homes: where its tasks may go.
        tries: schedules, at most.
        until: moment, on `time.perf_counter`, after which no further one is begun.
        answers: what policies have said already. Those that also say how many threads a task has are left out.

    Raises:
        PlacementError: no answer was found.
    """
    found: list[Found] = []
    for each in _forwards(problem, homes):
        found.append(each)
        if len(found) >= (tries + 1) // 2 or perf_counter() > until:
            break
    found.sort(key=lambda each: each.seconds)
    spent, open_ = len(found), list(range(len(found)))
    turned = Turned(problem, homes) if spent + 2 <= tries else None
    while turned is not None and open_ and spent + 2 <= tries and perf_counter() < until:
        start = turned.there_and_back(found[open_[0]])
        spent += 2
        if start.seconds < found[open_[0]].seconds * (1 - 1e-12):
            found[open_[0]] = start  # it may get better still
        else:
            open_.pop(0)
    for said in answers:
        if not any(said.threads):
            turns = said.turns or said.order
            found.append(Found.of(timed(problem, said.lanes, turns, ahead=said.ahead), turns, said.policy, said.ahead))
    return sorted(found, key=lambda each: each.seconds)


def settled(problem: Problem, homes: Sequence[int], tries: int, until: float = inf) -> list[Found]:
    """Some schedules with the processor of each task given, the best first; ranks are by what tasks take there."""
    fixed = fixed_at(problem, homes)
    found = several(fixed, Homes(fixed), tries, until)
    if problem.contiguous or problem.travels:
        found = sorted([*found, *waiting(fixed, homes)], key=lambda each: each.seconds)
    return [replace(each, rank=f"on even loads, {each.rank}") for each in found]


def fixed_at(problem: Problem, homes: Sequence[int]) -> Problem:
    """The problem with the processor of each task given."""
    return replace(problem, pin=dict(zip(problem.group_of, homes, strict=True)))


def waiting(fixed: Problem, homes: Sequence[int], most: int = 2) -> Iterator[Found]:
    """Up to two schedules of a problem with all tasks fixed at their processors, by what waits for each task."""
    rules, sends = Homes(fixed), fixed.channels and not fixed.overlap
    for order in islice((by_rank(upward(fixed)), range(len(homes))), most):
        urgent = by_urgency(fixed, awaited(fixed, homes, order))
        yield _sending(fixed, rules, urgent, ()) if sends else _earliest(fixed, rules, urgent, (), "by what waits")


def uneven(problem: Problem) -> bool:
    """Whether some tasks fit some processors better than others: in what they take there, or in what memory is left."""
    return len(problem.processors) > 1 and (problem.crowded or not problem.alike)


def lumpy(problem: Problem) -> bool:
    """Whether some group is so much work that where it goes decides how full a processor is.

    The first of its tasks that is placed sends all of them there, and may have seen nothing yet of how full that will be. And
    of few tasks for each lane, the last has no room into which it fits; contiguous parts are cut so that it has.
    """
    if len(problem.processors) < 2 or (problem.contiguous and not problem.group):
        return False
    work = np.bincount(problem.group_of, able_seconds(problem).min(axis=0))
    return bool(LUMP * work.max(initial=0.0) * len(problem.lanes) > work.sum())


def _forwards(problem: Problem, homes: Homes) -> Iterator[Found]:
    """By upward rank, with and without an eye to the time of processors."""
    order = by_rank(upward(problem))
    fitted = 0.0 if problem.alike else thrift(problem)
    if problem.channels and not problem.overlap:
        yield _sending(problem, homes, order, (fitted * waste(problem)).tolist() if fitted else ())
    for times in dict.fromkeys((fitted, *SPARING)) if fitted else (0.0,):
        later = (times * waste(problem)).tolist() if times else ()
        yield _earliest(problem, homes, order, later, f"sparing processors {times:.3g} times" if times else "as it is")


def thrift(problem: Problem) -> float:
    """How many times what a task wastes counts, where there is one try.

    Where the work fills all processors for longer than the longest path, time that is wasted is lost to all that comes after;
    where the path is longer, there is time to waste. The best factor of 0 to 64 grew as the cube of work over path, on random
    graphs of 1,000 tasks on three and eight processors.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> kinds = Kind("one", {1: [2.0, 6.0, 1.0]}), Kind("other", {1: [6.0, 2.0, 1.0]})
    >>> thrift(Problem("three", ("a", "b", "c"), kinds, (Processor("p", 0), Processor("q", 1)), [])) > 1.0
    True
    """
    path, work = longest_path(problem), float(least_work(problem).sum())
    return min(MOST_TIMES, (work / path) ** 3) if 0 < path < inf and work < inf else 1.0


def _sending(problem: Problem, homes: Homes, order: Sequence[int], later: Sequence[Sequence[float]]) -> Found:
    """Where a processor stands still while it sends: as if only whoever reads did, or else all tasks on one lane.

    A lane that has its next tasks already has no gap in which to send, so another one could begin only behind all of them, and
    by earliest ends every task stays where the first one is.
    """
    read = replace(problem, overlap=True, fetched=True)
    clock = homes.run(lambda rules: earliest(read, order, rules, later))
    apart = sorted(range(len(clock.turn)), key=lambda task: (clock.start[task], clock.turn[task]))
    ways: list[tuple[Sequence[int], Sequence[int], Ahead, str]] = [(clock.lane, apart, {}, "as if only readers waited")]
    if len(apart) <= MOST_AT_ONCE:
        ways.append((clock.lane, apart, _at_once(problem, clock.lane, apart), "sent at once"))
    made = [Found.of(timed(problem, lanes, way, ahead=ahead), way, rank, ahead) for lanes, way, ahead, rank in ways]
    whole = set(range(len(problem.processors))).intersection(*problem.able.values())
    if whole and not problem.crowded:
        work, one = min((sum(problem.seconds[each]), each) for each in whole)
        if work < min(each.seconds for each in made):
            lanes, way = [problem.first_lane[one]] * len(apart), range(len(apart))
            made.append(Found.of(timed(problem, lanes, way), way, "all on one lane"))
    return min(made, key=lambda each: each.seconds)


def _at_once(problem: Problem, lanes: Sequence[int], order: Sequence[int]) -> Ahead:
    """All that travels, each value before the task that follows its maker in the order."""
    home, follower = problem.lanes, dict(pairwise(order))
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for value, ((maker, _), readers) in enumerate(zip(problem.values, problem.readers, strict=True)):
        for there in {home[lanes[reader]] for reader in readers} - {home[lanes[maker]]}:
            found[follower[maker]] += [(value, channel) for channel in problem.routes.get((home[lanes[maker]], there), ())]
    return found


def _earliest(problem: Problem, homes: Homes, order: list[int], later: Sequence[Sequence[float]], rank: str) -> Found:
    return Found.of(homes.run(lambda rules: earliest(problem, order, rules, later)), order, rank)


class Turned:
    """A problem and its mirror, to pull schedules together from both sides."""

    def __init__(self, problem: Problem, homes: Homes) -> None:
        self.problem, self.mirror = problem, mirrored(problem)
        known = homes.known
        if known and not problem.group:  # each task is a group by its number
            known = {len(problem.tasks) - 1 - task: home for task, home in known.items()}
        self.homes, self.mirror_homes = homes, Homes(self.mirror, known)

    def there_and_back(self, found: Found) -> Found:
        """A schedule made tight from its end, then from its beginning: with every task on its lane, and with new lanes."""
        order = by_urgency(self.mirror, found.clock.end[::-1])
        kept = timed(self.mirror, found.lanes[::-1], order)
        onward = by_urgency(self.problem, kept.end[::-1])
        name = f"{found.rank}, from both sides"
        best = Found.of(timed(self.problem, kept.lane[::-1], onward), onward, name)
        try:
            free = self.mirror_homes.run(lambda rules: earliest(self.mirror, order, rules))
        except PlacementError:  # the mirror's own certificate was not found
            return best
        onward = by_urgency(self.problem, free.end[::-1])
        other = _earliest(self.problem, self.homes, onward, (), name)
        return min(best, other, key=lambda each: each.seconds)
