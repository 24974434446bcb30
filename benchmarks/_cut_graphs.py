"""Task graphs cut out of a schedule without gaps, each beside its length, than which nothing is shorter.

They differ in what else holds: chains, groups, memory, processors that cannot run everything. Each family is a generator, and
its first graph is the smallest. Tasks are shuffled, for their order to tell nothing of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, combinations, pairwise
from random import Random
from typing import Any

from _planted_graphs import END as SECONDS
from _planted_graphs import whole

from partitioner.ir.problem import Problem
from partitioner.spec.taskgraph import read_problem
from partitioner.spec.taskmachine import read_machine

END = 10_000
"""Seconds of a schedule that is cut into tasks of whole seconds."""

Known = tuple[Problem, float]
"""A problem and its optimum."""

Pairs = Iterable[tuple[int, int]]
Spans = Sequence[tuple[int, int, int]]


def posed(random: Random, tasks: Sequence[dict[str, Any]], pairs: Pairs, kinds: Sequence[str], **more: Any) -> Problem:
    """A problem from what a task graph document says of each task but its name, edges by number, and the kind of each device.

    Args:
        random: of the tasks' order.
        tasks: their entries.
        pairs: sources and targets.
        kinds: one for each device.
        more: ``memory`` of each device and ``bandwidth`` of a link between any two; ``overlap``, ``objective``, ``contiguous``.
    """
    asked = {key: more.pop(key) for key in ("objective", "contiguous") if key in more}
    device = {"memory": more.pop("memory")} if "memory" in more else {}
    machine: dict[str, Any] = {"devices": [{"name": f"d{n}", "kind": kind, **device} for n, kind in enumerate(kinds)]}
    if "bandwidth" in more:
        rate = more.pop("bandwidth")
        machine["links"] = [
            {"between": [f"d{one}", f"d{two}"], "bandwidth": rate} for one, two in combinations(range(len(kinds)), 2)
        ]
    entries = [{"name": f"t{number}", **task} for number, task in enumerate(tasks)]
    random.shuffle(entries)
    graph = {"tasks": entries, "edges": [[f"t{source}", f"t{target}"] for source, target in sorted(pairs)]}
    return read_problem(graph, read_machine(machine | more), **asked)


def _spans(random: Random, processors: int, each: int, last: int = END) -> Spans:
    """Start, end and home of ``each`` tasks of every processor, which fill it until ``last``; by their start."""
    cuts = [[0, *sorted(random.sample(range(1, last), each - 1)), last] for _ in range(processors)]
    return sorted((start, end, home) for home, cut in enumerate(cuts) for start, end in pairwise(cut))


def _edges(random: Random, spans: Spans, most: int) -> set[tuple[int, int]]:
    """Up to ``most`` readers of each task, of those next to start once it has ended."""
    found: set[tuple[int, int]] = set()
    for source, (_, end, _) in enumerate(spans):
        later = [task for task in range(source + 1, len(spans)) if spans[task][0] >= end][:8]
        found.update((source, target) for target in random.sample(later, min(len(later), random.randint(0, most))))
    return found


def chains() -> Iterator[Known]:
    """Chains of tasks of any length on equal processors, cut out of a full schedule.

    NP-hard on two processors: J. Du, J. Y.-T. Leung and G. H. Young, Scheduling chain-structured tasks to minimize makespan
    and mean flow time, Information and Computation 92, 1991.
    """
    for processors, each, count in ((3, 20, 8), (4, 25, 10), (8, 40, 40), (4, 150, 12), (10, 100, 60)):
        random = Random(f"chains {processors} {each}")
        spans, last, pairs = _spans(random, processors, each), dict[int, int](), list[tuple[int, int]]()
        for task, (start, _, _) in enumerate(spans):
            free = [chain for chain in range(count) if chain not in last or spans[last[chain]][1] <= start]
            if free:
                chain = random.choice(free)
                pairs += [(last[chain], task)] if chain in last else []
                last[chain] = task
        yield posed(random, [{"seconds": end - start} for start, end, _ in spans], pairs, ["p"] * processors), END


def packings(each: int) -> Iterator[Known]:
    """Tasks of which ``each`` fill a processor, all of about a length: what goes with what is all there is to find.

    Strongly NP-hard with three: M. R. Garey and D. S. Johnson, Complexity results for multiprocessor scheduling under resource
    constraints, SIAM J. Computing 4, 1975.
    """
    for processors in (60 // each, 180 // each, 600 // each):
        random, lengths = Random(f"packings {each} {processors}"), list[int]()
        for _ in range(processors):
            weights = [random.uniform(1, 2) for _ in range(each)]
            cuts = [round(10 * END * part / sum(weights)) for part in accumulate(weights, initial=0.0)]
            lengths += [two - one for one, two in pairwise(cuts)]
        yield posed(random, [{"seconds": length} for length in lengths], [], ["p"] * processors), 10 * END


def clusters() -> Iterator[Known]:
    """Clusters whose values take as long to travel as everything together, so that they stay whole and are packed as they are.

    The grain of A. Gerasoulis and T. Yang, IEEE Trans. Parallel and Distributed Systems 4, 1993, at its finest: Problems of
    `_planted_graphs.whole`, where tasks overlap with travels and where they do not.
    """
    for processors, each, size, overlap in ((3, 4, 5, True), (4, 5, 8, False), (6, 3, 12, True), (8, 5, 25, True)):
        yield whole(Random(f"clusters {processors}"), processors, each, size, overlap), 20 * SECONDS


def groups() -> Iterator[Known]:
    """Tasks that have to share a processor, by ones, twos, threes and fives, cut out of a full schedule.

    Colocation as in A. Mirhoseini et al., Device placement optimization with reinforcement learning, ICML 2017.
    """
    for processors, each in ((3, 20), (4, 25), (6, 50), (8, 60), (4, 200)):
        random = Random(f"groups {processors} {each}")
        spans, group = _spans(random, processors, each), dict[int, str]()
        for home in range(processors):
            own = [task for task, span in enumerate(spans) if span[2] == home]
            random.shuffle(own)
            while own:
                name, count = f"g{own[-1]}", random.choice((1, 2, 3, 5))
                group |= dict.fromkeys(own[-count:], name)
                del own[-count:]
        tasks = [{"seconds": end - start, "group": group[task]} for task, (start, end, _) in enumerate(spans)]
        yield posed(random, tasks, _edges(random, spans, 1), ["p"] * processors), END


def job_shops() -> Iterator[Known]:
    """Chains of tasks each of which can run on one machine alone, cut out of a full schedule: what is left is to order them.

    H. Fisher and G. L. Thompson, Probabilistic learning combinations of local job-shop scheduling rules, 1963, is the problem.
    """
    for machines, each in ((3, 7), (4, 25), (6, 50), (8, 125)):
        random = Random(f"job shops {machines} {each}")
        spans, last, pairs = _spans(random, machines, each), dict[int, int](), list[tuple[int, int]]()
        for task, (start, _, _) in enumerate(spans):
            free = [job for job in range(int(1.3 * machines)) if job not in last or spans[last[job]][1] <= start]
            for job in random.sample(free, min(1, len(free))):
                pairs += [(last[job], task)] if job in last else []
                last[job] = task
        tasks = [{"seconds": {f"m{home}": end - start}} for start, end, home in spans]
        yield posed(random, tasks, pairs, [f"m{home}" for home in range(machines)]), END


def unequal(kinds: int, away: Sequence[float], missing: float) -> Iterator[Known]:
    """Processors of ``kinds`` kinds, or each of its own with 0; elsewhere a task takes as many times as long, or cannot run.

    Unrelated processors as in J. K. Lenstra, D. B. Shmoys and E. Tardos, Mathematical Programming 46, 1990, with edges; cut out
    of a schedule in which every task is where nothing is faster.

    Args:
        kinds: how many.
        away: some factors, of which one is drawn.
        missing: the chance that a kind cannot run a task.
    """
    for processors, each in ((4, 15), (6, 20), (8, 45), (10, 100)):
        random, count = Random(f"unequal {kinds} {missing} {processors}"), kinds or processors
        spans = _spans(random, processors, each)
        tasks = []
        for start, end, home in spans:
            others = {f"k{kind}": (end - start) * random.choice(away) for kind in range(count) if random.random() >= missing}
            tasks.append({"seconds": others | {f"k{home % count}": end - start}})
        yield posed(random, tasks, _edges(random, spans, 2), [f"k{home % count}" for home in range(processors)]), END


def full_memory() -> Iterator[Known]:
    """Independent tasks that fill the time and the memory of every processor: neither has any room.

    Packing of vectors: M. R. Garey, R. L. Graham, D. S. Johnson and A. C. Yao, J. Combinatorial Theory A 21, 1976.
    """
    for processors, each in ((10, 5), (6, 12), (5, 40), (8, 60), (8, 120)):
        random, room = Random(f"full memory {processors} {each}"), 10 * each
        both = _spans(random, processors, each), _spans(random, processors, each, room)
        time, held = (sorted(spans, key=lambda span: span[2]) for spans in both)
        tasks = [{"seconds": one[1] - one[0], "memory": two[1] - two[0]} for one, two in zip(time, held, strict=True)]
        yield posed(random, tasks, [], ["p"] * processors, memory=room), END
