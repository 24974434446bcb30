"""Task graphs whose optimum is known by theory: an algorithm that is proven optimal, a dynamic program, or a full schedule.

    trees, interval orders, two processors     tasks of one second: list scheduling by the right rank is optimal
    level orders, contiguous chains            a dynamic program looks at all that matters
    flow shops                                 Johnson's rule
    everything else                            from `_cut_graphs`: cut out of a schedule without gaps

Each family is a generator of three to five graphs of 50 to 1,000 tasks, the smallest first, each beside its optimum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from math import inf
from random import Random

import networkx as nx
from _cut_graphs import Known, Pairs, chains, clusters, full_memory, groups, job_shops, packings, posed, unequal

from partitioner.ir.problem import Problem

# Tasks of one second --------------------------------------------------------------------------------------------------


def _unit(random: Random, tasks: int, pairs: Pairs, processors: int) -> Problem:
    return posed(random, [{"seconds": 1}] * tasks, pairs, ["p"] * processors)


def _after(tasks: int, pairs: Pairs) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(tasks)]
    for source, target in sorted(pairs):
        found[source].append(target)
    return found


def _steps(after: Sequence[Sequence[int]], rank: Sequence[float], processors: int) -> int:
    """Seconds of a schedule in which those of the highest rank start, of the tasks that can."""
    waiting = [0] * len(after)
    for target in (target for each in after for target in each):
        waiting[target] += 1
    ready, steps = [task for task, count in enumerate(waiting) if not count], 0
    while ready:
        ready.sort(key=lambda task: -rank[task])
        now, ready = ready[:processors], ready[processors:]
        for target in (target for task in now for target in after[task]):
            waiting[target] -= 1
            ready += [] if waiting[target] else [target]
        steps += 1
    return steps


def trees(out: bool) -> Iterator[Known]:
    """Each task has one successor at most, or with ``out`` one predecessor: highest level first is optimal.

    T. C. Hu, Parallel sequencing and assembly line problems, Operations Research 9, 1961. A schedule of a forest, read
    backwards, is one of the forest with its edges turned round.
    """
    for tasks, processors, near in ((60, 3, 8), (120, 5, 30), (300, 8, 12), (500, 6, 60), (1000, 16, 80)):
        random = Random(f"trees {tasks}")
        pairs = [(task, random.randint(task + 1, min(tasks - 1, task + near))) for task in range(tasks - 1)]
        level = [1] * tasks
        for source, target in reversed(pairs):
            level[source] = level[target] + 1
        optimum = _steps(_after(tasks, pairs), level, processors)
        yield _unit(random, tasks, [(two, one) for one, two in pairs] if out else pairs, processors), optimum


def two_processors() -> Iterator[Known]:
    """Any graph on two processors: labels from the end on, by the labels of what follows at once.

    E. G. Coffman and R. L. Graham, Optimal scheduling for two-processor systems, Acta Informatica 1, 1972.
    """
    for tasks, near in ((60, 3), (80, 5), (200, 4), (400, 3), (700, 5)):
        random, dag = Random(f"two processors {tasks}"), nx.DiGraph()
        dag.add_nodes_from(range(tasks))
        for target in range(1, tasks):
            before = range(max(0, target - near), target)
            dag.add_edges_from((source, target) for source in random.sample(before, min(target, random.randint(1, 2))))
        pairs = list(nx.transitive_reduction(dag).edges)
        after = _after(tasks, pairs)
        yield _unit(random, tasks, pairs, 2), _steps(after, _labels(after), 2)


def _labels(after: Sequence[Sequence[int]]) -> list[int]:
    """1 to n, so that of two tasks the one with the lesser labels behind it, the largest first, has the lesser label."""
    label = [0] * len(after)
    for number in range(1, len(after) + 1):
        free = [task for task, own in enumerate(label) if not own and all(label[target] for target in after[task])]
        label[min(free, key=lambda task: sorted((label[target] for target in after[task]), reverse=True))] = number
    return label


def interval_orders() -> Iterator[Known]:
    """Tasks are intervals, and wait for those that end before they begin: who has most behind it goes first.

    C. H. Papadimitriou and M. Yannakakis, Scheduling interval-ordered tasks, SIAM J. Computing 8, 1979.
    """
    for tasks, processors, longest in ((60, 3, 0.1), (100, 4, 0.08), (300, 3, 0.02), (400, 8, 0.04)):
        random = Random(f"interval orders {tasks}")
        begin = sorted(random.random() for _ in range(tasks))
        end = [each + longest * random.random() ** 2 for each in begin]
        first = [bisect_right(begin, each) for each in end]  # of those behind, which are all from there on
        next_end = list(accumulate(reversed(end), min))[::-1]
        pairs = [
            (task, other) for task, one in enumerate(first) for other in range(one, tasks) if begin[other] <= next_end[one]
        ]
        rank = [tasks - each for each in first]
        yield _unit(random, tasks, pairs, processors), _steps(_after(tasks, pairs), rank, processors)


def level_orders() -> Iterator[Known]:
    """Parts of levels, each of which waits for all of the one above it: what counts is how much of each part is done.

    D. Dolev and M. K. Warmuth, Profile scheduling of opposing forests and level orders, SIAM J. Algebraic and Discrete Methods
    6, 1985: polynomial where the number of processors is fixed.
    """
    for processors, parts, deep in ((3, 2, 10), (4, 3, 8), (5, 2, 20), (3, 3, 20), (4, 2, 60)):
        random, pairs, count = Random(f"level orders {processors} {parts} {deep}"), list[tuple[int, int]](), 0
        ends: list[list[int]] = []
        for _ in range(parts):
            sizes = [random.randint(1, processors + 2) for _ in range(deep)]
            cuts = list(accumulate(sizes, initial=count))
            for one, two, three in zip(cuts, cuts[1:], cuts[2:], strict=False):
                pairs += product(range(one, two), range(two, three))
            ends.append([cut - count for cut in cuts])
            count = cuts[-1]
        yield _unit(random, count, pairs, processors), _fewest_steps(ends, processors)


def _fewest_steps(ends: Sequence[Sequence[int]], processors: int) -> int:
    """Steps until all parts are done, whose levels end at so many tasks: all states that can be reached, step by step."""
    states, steps, all_done = {(0,) * len(ends)}, 0, tuple(each[-1] for each in ends)
    while all_done not in states:
        found = set[tuple[int, ...]]()
        for state in states:
            rooms = [each[min(bisect_right(each, done), len(each) - 1)] - done for each, done in zip(ends, state, strict=True)]
            busy = min(processors, sum(rooms))  # a task of one second is never better left for later
            for taken in product(*(range(min(room, busy) + 1) for room in rooms)):
                if sum(taken) == busy:
                    found.add(tuple(done + more for done, more in zip(state, taken, strict=True)))
        states, steps = found, steps + 1
    return steps


# In a row -------------------------------------------------------------------------------------------------------------


def flow_shops() -> Iterator[Known]:
    """Jobs of two tasks, the first for one machine and the second for the other.

    S. M. Johnson, Optimal two- and three-stage production schedules with setup times included, Naval Research Logistics
    Quarterly 1, 1954: those that are shorter on the first machine go first, the shortest before others; then the rest, those
    that are longest on the second machine before others.
    """
    for jobs in (25, 60, 150, 400):
        random = Random(f"flow shops {jobs}")
        times = [(random.randint(20, 100), random.randint(1, 120)) for _ in range(jobs)]
        first = second = 0
        for one, two in sorted(times, key=lambda job: (0, job[0]) if job[0] < job[1] else (1, -job[1])):
            first += one
            second = max(first, second) + two
        tasks = [{"seconds": {kind: length}} for job in times for kind, length in zip("xy", job, strict=True)]
        yield posed(random, tasks, [(2 * job, 2 * job + 1) for job in range(jobs)], "xy"), second


def contiguous_chains(overlap: bool) -> Iterator[Known]:
    """The largest load of a chain's intervals, with what they send and receive, where it overlaps with work and where not.

    S. H. Bokhari, Partitioning problems in parallel, pipelined, and distributed computing, IEEE Trans. Computers 37, 1988.
    """
    for count, processors in ((50, 4), (120, 7), (200, 8), (400, 12)):
        random = Random(f"contiguous chains {count} {overlap}")
        seconds = [random.randint(1, 100) for _ in range(count)]
        sent = [random.choice((0, 10, 60, 300, 1000)) for _ in range(count)]
        done, moved = [0, *accumulate(seconds)], [0, *sent[:-1], 0]  # before each place, and what passes it
        join: Callable[..., int] = max if overlap else lambda *parts: sum(parts)
        best = [0.0, *[inf] * count]
        for _ in range(processors):
            best = [0.0] + [
                min(max(best[start], join(done[end] - done[start], moved[start], moved[end])) for start in range(end))
                for end in range(1, count + 1)
            ]
        tasks = [{"seconds": one, "output": two} for one, two in zip(seconds, sent, strict=True)]
        asked = {"objective": "throughput", "contiguous": True, "bandwidth": 1, "overlap": overlap}
        yield posed(random, tasks, pairwise(range(count)), ["p"] * processors, **asked), best[count]


FAMILIES: dict[str, Callable[[], Iterator[Known]]] = {
    "in-trees": partial(trees, out=False),
    "out-trees": partial(trees, out=True),
    "two processors": two_processors,
    "interval orders": interval_orders,
    "level orders": level_orders,
    "chains": chains,
    "packings of 3": partial(packings, 3),
    "packings of 5": partial(packings, 5),
    "clusters": clusters,
    "groups": groups,
    "unrelated, nearly alike": partial(unequal, 0, (1.001, 1.01, 1.05, 1.1), 0.0),
    "unrelated, half missing": partial(unequal, 0, (1.01, 1.1, 1.5), 0.5),
    "two kinds, half missing": partial(unequal, 2, (1, 1.2, 2, 3), 0.5),
    "three kinds, half missing": partial(unequal, 3, (1, 1.2, 2, 3), 0.5),
    "full memory": full_memory,
    "flow shops": flow_shops,
    "job shops": job_shops,
    "contiguous chains, overlap": partial(contiguous_chains, overlap=True),
    "contiguous chains": partial(contiguous_chains, overlap=False),
}
"""Each by its name."""
