"""Seconds that no schedule can beat, proven: paths, joins, work between two times, numbers, passages, the issuing thread.

    head 2   | task |   tail 3         every task has a time before it (head) and after it (tail) that any schedule needs;
    tasks of head >= 2 and tail >= 3   their work fits between 2 and the end - 3, on all lanes that can have it

The work of a task that may run on different processors is its seconds at their prices (`planner/prices.py`), where that
is least. No schedule does more than one priced second of work in a second, so any prices give a bound; prices of one processor
alone give that of the tasks it must run.

Where nothing overlaps, a processor does one thing at a time: its tasks, what it sends, what it receives. Together they are its
load, so the makespan is no less than the largest load, and what bounds loads (`planner/throughput/bound.py`) bounds it.

Sources: Graham, SIAM Journal on Applied Mathematics 17(2), 1969; Carlier, "The one-machine sequencing problem", EJOR 11, 1982.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from operator import add

import numpy as np

from partitioner.ir.problem import ISSUE, Problem
from partitioner.planner.latency.intervals import interval_bound
from partitioner.planner.latency.passages import passage_bound
from partitioner.planner.latency.ranks import transit
from partitioner.planner.latency.together import together_bound
from partitioner.planner.once import once
from partitioner.planner.prices import Table, able_seconds, lane_counts, lane_rents, least_paid, least_work, prices
from partitioner.planner.throughput.bound import least_load, load_bound, pigeonholed
from partitioner.planner.throughput.branch import FEW

LARGEST_TABLE = 250_000
"""Pairs of an edge and two processors up to which heads and tails are found for each processor."""

LARGEST_LOADS = 500
"""Tasks and edges up to which loads are bounded by cuts: some ten milliseconds."""

MOST_NUMBERED = 500
"""Tasks up to which the numbers of tasks in sets are looked at, and not that of all tasks alone."""

POINTS = 64
"""Times that are looked at as the head, or as the tail, of a set of tasks."""


@once
def makespan_bound(problem: Problem) -> float:
    """Seconds from the start of a call to its end that no schedule can beat.

    Args:
        problem: any; its objective is not looked at.

    Returns:
        The largest of the bounds described above; infinite where a task can run nowhere.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> makespan_bound(Problem("bag", ("a", "b", "c"), (Kind("cpu", {1: [2.0] * 3}),), (Processor("cpu", 0, lanes=2),), []))
    4.0
    """
    if not problem.tasks:
        return 0.0
    seconds = able_seconds(problem)
    heads, tails, longest = reach(problem)
    found = [longest, _issued(problem)]
    if not np.isfinite(longest):
        return inf
    lanes = lane_counts(problem)
    found += [_between(heads, tails, each) for each in (least_work(problem), *_alone(seconds, lanes))]
    found += [_grouped(problem, seconds, heads, tails), _with_starts(problem, float(seconds.min(axis=0).sum()))]
    if problem.crowded:
        price, rent, held = lane_rents(problem)
        found.append(least_paid(seconds, held, np.array(problem.caps), price, rent) * (1 - 1e-9))
    found += [passage_bound(problem), together_bound(problem), _numbered(heads, seconds.min(axis=0), tails, len(problem.lanes))]
    found += [_loaded(problem), interval_bound(problem) if problem.contiguous else 0.0]
    shared = _shared(problem, seconds)
    if shared is not None:
        price = prices(shared, np.ones(len(shared)))
        found.append(_between(heads, tails, (shared * price[:, None]).min(axis=0)) * (1 - 1e-8))
    return max(found)


def relaxed(problem: Problem) -> Problem:
    """The problem of loads of which none is less than in any schedule: where processors compute meanwhile, nothing travels.

    Values of one processor go over several links at once there, so what it sends in all may take longer than the schedule.
    """
    loads = replace(problem, objective="throughput")
    return loads if problem.waits else replace(loads, overlap=True, channels=(), routes={})


def _loaded(problem: Problem) -> float:
    """The load of some processor: what it computes and, where it stands still meanwhile, what it sends and receives."""
    if len(problem.tasks) <= FEW and (problem.waits or problem.crowded or not problem.alike):
        return least_load(relaxed(problem))
    return load_bound(problem) if problem.waits and len(problem.tasks) + len(problem.edges) <= LARGEST_LOADS else 0.0


def longest_path(problem: Problem) -> float:
    """Seconds of the longest path, each task where that takes the least."""
    return reach(problem)[2] if problem.tasks else 0.0


def tails(problem: Problem) -> list[float]:
    """Seconds from the start of each task to the end of all, at least."""
    seconds = able_seconds(problem)
    found: list[float] = (reach(problem)[1] + seconds.min(axis=0)).tolist()
    return found


@once
def reach(problem: Problem) -> tuple[Table, Table, float]:
    """Heads, tails, and the longest path: by processor where that is quick and matters, else with each task at its fastest."""
    seconds = able_seconds(problem)
    count = len(problem.processors)
    if problem.channels and len(problem.edges) * count * count <= LARGEST_TABLE:
        heads, tails = _by_processor(problem, seconds, False), _by_processor(problem, seconds, True)
        longest = float((heads + seconds + tails).min(axis=0).max())
        return heads.min(axis=0), tails.min(axis=0), longest
    least = seconds.min(axis=0).tolist()
    head, tail = [0.0] * len(least), [0.0] * len(least)
    for task, sources in enumerate(problem.before):
        for source, value in sources:
            if value != ISSUE and (far := head[source] + least[source]) > head[task]:
                head[task] = far
    for task in range(len(least) - 1, -1, -1):
        own = tail[task] + least[task]
        for source, value in problem.before[task]:
            if value != ISSUE and own > tail[source]:
                tail[source] = own
    found, left = np.array(head), np.array(tail)
    return found, left, float((found + np.array(least) + left).max())


def _by_processor(problem: Problem, seconds: Table, turned: bool) -> Table:
    """Heads, or tails, by processor and task: what is on another processor has a way to go, unhindered."""
    passed, group, own = transit(problem, turned), problem.group_of, seconds.T.tolist()
    reach = [[0.0] * len(problem.processors) for _ in own]
    for task in reversed(range(len(own))) if turned else range(len(own)):
        for source, value in problem.before[task]:
            if value == ISSUE:
                continue
            one, other = (task, source) if turned else (source, task)
            far = list(map(add, reach[one], own[one]))
            if group[source] != group[task]:
                far = passed(value, far)
            reach[other] = list(map(max, reach[other], far))
    return np.array(reach).T


def _alone(seconds: Table, lanes: Table) -> Iterator[Table]:
    """For each processor that some tasks must have, their work there, and none of the others'."""
    only = np.isfinite(seconds).sum(axis=0) == 1
    if only.any() and len(seconds) > 1:
        for row, count in zip(seconds, lanes, strict=True):
            must = only & np.isfinite(row)
            if must.any():
                yield np.where(must, row, 0.0) / count


def _between(heads: Table, tails: Table, work: Table) -> float:
    """The largest head + work + tail over the sets of the tasks that have at least that head and that tail."""
    some = work > 0
    if not some.any():
        return 0.0
    heads, tails, work = heads[some], tails[some], work[some]
    starts, ends = _points(heads), _points(tails)
    row, column = np.searchsorted(starts, heads, side="right") - 1, np.searchsorted(ends, tails, side="right") - 1
    grid = np.bincount(row * len(ends) + column, weights=work, minlength=len(starts) * len(ends))
    total = grid.reshape(len(starts), len(ends))[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    return float(np.where(total > 0, starts[:, None] + total + ends[None, :], 0.0).max())


def _numbered(heads: Table, seconds: Table, tails: Table, lanes: int) -> float:
    """The largest head + `pigeonholed` + tail over the sets of tasks that have at least some head, or at least some tail."""
    few = len(heads) <= MOST_NUMBERED
    sets = [times >= start for times in (heads, tails) for start in _points(times)] if few else [heads >= 0.0]
    numbered = ((some, pigeonholed(seconds[some], lanes)) for some in sets)
    return max((float(heads[some].min() + most + tails[some].min()) for some, most in numbered if most), default=0.0)


def _points(times: Table) -> Table:
    """Different times, the smallest among them; evenly many tasks apart where there are many."""
    ordered: Table = np.sort(times)
    chosen = np.flatnonzero(np.append(True, ordered[1:] > ordered[:-1]))  # np.unique loads numpy.ma, which takes longer
    if len(chosen) > POINTS:
        chosen = np.linspace(0, len(times) - 1, POINTS).astype(int)
    found: Table = ordered[chosen]
    return found


def _grouped(problem: Problem, seconds: Table, heads: Table, tails: Table) -> float:
    """The group that keeps one processor busy the longest, where that is shortest."""
    lanes = np.array([each.lanes for each in problem.processors], dtype=float)
    return (
        max(
            (
                float(heads[tasks].min() + (seconds[:, tasks].sum(axis=1) / lanes).min() + tails[tasks].min())
                for tasks in problem.members.values()
                if len(tasks) > 1
            ),
            default=0.0,
        )
        if problem.group
        else 0.0
    )


def _with_starts(problem: Problem, work: float) -> float:
    """The least end by which all lanes have time for ``work``, the same on all of them, though all but the first start late.

    A lane but the first starts a hand-off late and is through a hand-off early; where something only orders what the host
    issues, nothing is said about its end.
    """
    if not problem.alike:
        return 0.0
    back = 0.0 if any(value == ISSUE for _, _, value in problem.edges) else problem.back
    late = sorted([0.0] + [problem.processors[home].handoff + back for home in problem.lanes[1:]])
    end, spent = 0.0, 0.0
    for used, lost in enumerate(late, start=1):
        spent += lost
        end = (work + spent) / used
        if used == len(late) or end <= late[used]:
            break
    return end


def _issued(problem: Problem) -> float:
    """What the issuing thread must do at least."""
    kinds = {each.kind for each in problem.processors}
    issues = [problem.kinds[kind].issue for kind in kinds]
    rows = [list(issue) for issue in issues if issue is not None]
    return float(np.array(rows, dtype=float).min(axis=0).sum()) if rows and len(rows) == len(issues) else 0.0


def _shared(problem: Problem, seconds: Table) -> Table | None:
    """Seconds by processor and task in which the task has a whole processor, for what its lanes share; ``None`` if nothing."""
    shares = [problem.kinds[each.kind].share if each.lanes > 1 else None for each in problem.processors]
    if all(share is None for share in shares):
        return None
    rows = [
        row / each.lanes if share is None else np.where(np.isfinite(row), row, 0.0) * np.array(share, dtype=float)
        for row, each, share in zip(seconds, problem.processors, shares, strict=True)
    ]
    return np.where(np.isfinite(seconds), np.array(rows), inf)
