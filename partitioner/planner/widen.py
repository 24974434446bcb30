"""Threads inside ops: tasks that run alone on a CPU get all of its cores, if that gains enough to pay.

Where one lane is all that a plan uses of a CPU, nothing is shared, and every task has every core, as in eager.

    cpu/0   |  t0  |   t1   |  t3  |       t0 and t3 run alone: every core
    cpu/1          |   t2   |              t1 and t2 share them

Whether a task is alone is asked of what must come before what, not of predicted times: a lane that is late must not find its
cores taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.timing import timed

GAINED = 5e-3
"""Seconds that every core must gain for the tasks that run alone, one after the other: OpenMP's pool is started for them and
sent home after them. That takes 50 us, or 20 ms where the kernel starts a thread on the core of the one that waits for it."""


def widened(problem: Problem, answer: Assignment) -> Assignment:
    """``answer`` with all threads for the tasks that run alone on a CPU, timed again, under a bound that knows of threads."""
    if not shares_cores(problem) or answer.threads:  # a policy that says how many knows better
        return answer
    threads = [0] * len(problem.tasks)
    used = Counter(problem.lanes[lane] for lane in set(answer.lanes))
    for tasks in _stretches(problem, answer):
        processor = problem.lanes[answer.lanes[tasks[0]]]
        each = problem.processors[processor]
        if each.cores > each.threads_per_lane and (used[processor] == 1 or _pays(problem, tasks, processor)):
            for task in tasks:
                threads[task] = each.cores
    if problem.objective != "latency":
        return replace(answer, threads=threads)
    if not any(threads):
        return replace(answer, bound=min(answer.cost, thread_bound(problem)))
    clock = timed(problem, answer.lanes, answer.order, threads)
    least = min(clock.makespan, thread_bound(problem))
    return replace(answer, threads=threads, start=clock.start, end=clock.end, cost=clock.makespan, bound=least)


def shares_cores(problem: Problem) -> bool:
    """Whether a task may have more threads than its lane's share."""
    return any(each.cores > each.threads_per_lane for each in problem.processors)


def _pays(problem: Problem, tasks: list[int], processor: int) -> bool:
    """Whether a stretch of tasks, among others that share the cores, should have all of them."""
    shared, wide = problem.seconds[processor], problem.seconds_of(processor, problem.processors[processor].cores)
    return sum(shared[task] - wide[task] for task in tasks) >= GAINED


def _stretches(problem: Problem, answer: Assignment) -> Iterator[list[int]]:
    """The tasks that run alone on a processor, those of one lane together between which none of another lane runs there."""
    free, last = {*alone(problem, answer)}, dict[int, list[int]]()
    for task in answer.order:
        processor = problem.lanes[answer.lanes[task]]
        stretch = last.get(processor, [])
        if task in free and stretch and answer.lanes[stretch[0]] == answer.lanes[task]:
            stretch.append(task)
            continue
        if stretch:
            yield stretch
        last[processor] = [task] if task in free else []
    yield from filter(None, last.values())


def alone(problem: Problem, answer: Assignment) -> list[int]:
    """The tasks beside which no task of another lane of their processor can run."""
    clocks, ticks, by_lane = _clocks(problem, answer)
    found = []
    for task in answer.order:
        lane = answer.lanes[task]
        beside = (
            other for other in by_lane if other != lane and problem.lanes[other] == problem.lanes[lane] and by_lane[other]
        )
        if not any(
            clocks[task][other] < bisect_left(by_lane[other], True, key=lambda one: clocks[one][lane] >= ticks[task])
            for other in beside
        ):
            found.append(task)
    return found


def _clocks(problem: Problem, answer: Assignment) -> tuple[dict[int, list[int]], dict[int, int], dict[int, list[int]]]:
    """For each task how many tasks of each lane have ended when it starts; its place on its lane, from 1; the lanes' tasks."""
    by_lane: dict[int, list[int]] = {lane: [] for lane in range(len(problem.lanes))}
    clocks: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for task in answer.order:
        lane = answer.lanes[task]
        known = [0] * len(problem.lanes)
        for source in [source for source, _ in problem.before[task]] + by_lane[lane][-1:]:
            known = list(map(max, known, clocks[source]))
            known[answer.lanes[source]] = max(known[answer.lanes[source]], ticks[source])
        by_lane[lane].append(task)
        clocks[task], ticks[task] = known, len(by_lane[lane])
    return clocks, ticks, by_lane


def thread_bound(problem: Problem) -> float:
    """Seconds that no schedule can beat, however many threads each task gets.

    The larger of the longest path, each task with the threads with which it is fastest, and of the work, each task where and
    with as many threads as it keeps the fewest cores busy, over all cores.
    """
    fastest, least = [], []
    tables = [
        (problem.seconds_of(number, width), width)
        for number, each in enumerate(problem.processors)
        for width in sorted(problem.kinds[each.kind].seconds)
        if width <= each.cores
    ]
    for task in range(len(problem.tasks)):
        fastest.append(min(seconds[task] for seconds, _ in tables))
        least.append(min(seconds[task] * width for seconds, width in tables))
    longest = [0.0] * len(problem.tasks)
    for task in range(len(problem.tasks)):
        ready = max((longest[source] for source, value in problem.before[task] if value != ISSUE), default=0.0)
        longest[task] = ready + fastest[task]
    cores = sum(max(each.cores, each.lanes) for each in problem.processors)
    return max(max(longest, default=0.0), sum(least) / cores if cores else 0.0)
