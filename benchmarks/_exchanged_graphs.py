"""Task graphs cut out of a full schedule in which values travel: where nothing overlaps, passages fill processors, too.

    p0  | a | b   |=v=| d   |        nothing overlaps: p0 sends v while p1 receives it, and neither computes meanwhile
    p1  |  c      |=v=| e |f|        e reads v; every processor is busy from 0 to 100

Where a task belongs, and why nothing is shorter than 100:

*unequal*: it is fastest there, and elsewhere takes longer by more than its passages keep processors busy.
*grouped*: all tasks of a processor are one group; two groups on one processor are too long, and apart all that travels must.
*equal*: anywhere. Where nothing overlaps a placement with fewer passages may be shorter, so 100 is only what is known.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from random import Random
from typing import Literal

from _planted_graphs import END

from partitioner.ir.problem import ORDER, Channel, Kind, Problem, Processor

Sort = Literal["unequal", "grouped", "equal"]

LATENCY = 0.02
"""Seconds of a passage of no bytes."""


@dataclass
class Drawn:
    """A schedule while it grows.

    Args:
        spans: start, end and processor of each task.
        own: numbers of the tasks of each processor.
        free: until when each processor is busy.
        size: seconds on a channel of each task's value, latency not counted.
        there: when the values that have travelled are on a processor: task, processor.
    """

    spans: list[tuple[float, float, int]] = field(default_factory=list)
    own: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    free: list[float] = field(default_factory=list)
    size: dict[int, float] = field(default_factory=dict)
    there: dict[tuple[int, int], float] = field(default_factory=dict)

    def busy(self, processor: int, until: float) -> None:
        """A task from when the processor is free until then."""
        if until > self.free[processor]:
            self.own[processor].append(len(self.spans))
            self.spans.append((self.free[processor], until, processor))
            self.free[processor] = until

    def seconds(self, task: int, drawn: float) -> float:
        """Of a passage of a task's value, which has the size that was drawn for its first one."""
        return LATENCY + self.size.setdefault(task, drawn)


def exchanged(random: Random, processors: int, tasks: int, sort: Sort, overlap: bool, host: bool) -> Problem:
    """A problem of about ``tasks`` tasks and its schedule of 100 seconds.

    Args:
        random: of everything that is drawn.
        processors: of one lane each.
        tasks: about how many.
        sort: what binds a task to its processor; see above.
        overlap: whether processors compute while values travel.
        host: values go over the host, by a link of each processor, and not over a link of each pair.
    """
    drawn = Drawn(free=[0.0] * processors)
    length = END * processors / tasks
    while min(drawn.free) < END:
        here = min(range(processors), key=drawn.free.__getitem__)
        if not overlap and random.random() < 0.3 and drawn.free[here] < 0.93 * END:
            _exchange(random, drawn, here, length, host)
        until = drawn.free[here] + random.expovariate(1 / length) + 1e-3
        drawn.busy(here, until if until < END - length / 2 else END)
    if overlap:
        _beside(random, drawn, length, host)
    return _problem(random, drawn, sort, overlap, host)


def _exchange(random: Random, drawn: Drawn, here: int, length: float, host: bool) -> None:
    """A value from here to another processor: both stand still, at once, or one after the other where the host is between."""
    sent = [task for task in drawn.own[here][-4:] if (task, here) not in drawn.there]
    there = random.choice([each for each in range(len(drawn.free)) if each != here])
    if not sent or max(drawn.free) > 0.95 * END:
        return
    task = random.choice(sent)
    if (task, there) in drawn.there:
        return
    seconds = drawn.seconds(task, length * random.uniform(0.05, 0.5))
    if not any(other == task for other, _ in drawn.there) or not host:  # over the host it leaves here once
        start = drawn.free[here] if host else max(drawn.free[here], drawn.free[there])
        drawn.busy(here, start)
        drawn.free[here] = start + seconds
    arrives = max(drawn.free[there], drawn.free[here])
    drawn.busy(there, arrives)
    drawn.free[there] = drawn.there[task, there] = arrives + seconds


def _beside(random: Random, drawn: Drawn, length: float, host: bool) -> None:
    """Values that travel while processors compute, each as soon as its links are free."""
    links: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for task in sorted(range(len(drawn.spans)), key=lambda each: drawn.spans[each][1]):
        _, end, here = drawn.spans[task]
        if random.random() < 0.6:
            there = random.choice([each for each in range(len(drawn.free)) if each != here])
            at, seconds = end, drawn.seconds(task, length * random.uniform(0.2, 1.5))
            for link in [(here,), (there,)] if host else [(here, there)]:
                at = links[link] = max(at, links[link]) + seconds
            drawn.there[task, there] = at


def _problem(random: Random, drawn: Drawn, sort: Sort, overlap: bool, host: bool) -> Problem:
    order = sorted(range(len(drawn.spans)), key=drawn.spans.__getitem__)
    number = {task: place for place, task in enumerate(order)}
    spans = [drawn.spans[task] for task in order]
    pairs = sorted((number[one], number[other]) for one, other in _edges(random, drawn))
    sources = sorted({number[task] for task in drawn.size})
    value = {task: place for place, task in enumerate(sources)}
    size = {number[task]: each for task, each in drawn.size.items()}
    count = len(drawn.free)
    ways = list(permutations(range(count), 2))
    links = [(each,) for each in range(count)] if host else ways
    routes = {(one, two): (one, two) if host else (links.index((one, two)),) for one, two in ways}
    moved: defaultdict[int, float] = defaultdict(float)
    for source, target in pairs:
        if spans[source][2] != spans[target][2]:
            for task in (source, target):
                moved[task] += 2 * (LATENCY + size.get(source, 0.0))
    kinds = 1 if sort != "unequal" else count
    table = [
        [
            end - start if kinds == 1 or home == other else (end - start) * random.uniform(1.2, 4) + moved[task]
            for task, (start, end, home) in enumerate(spans)
        ]
        for other in range(kinds)
    ]
    return Problem(
        f"{sort}-{len(spans)}",
        tuple(f"t{task}" for task in range(len(spans))),
        tuple(Kind(f"k{other}", {1: row}) for other, row in enumerate(table)),
        tuple(Processor(f"p{each}", each if kinds > 1 else 0) for each in range(count)),
        [(source, target, value.get(source, ORDER)) for source, target in pairs],
        [(task, size[task]) for task in sources],
        tuple(Channel("-".join(map(str, link)), 1.0, LATENCY, link) for link in links),
        routes,
        group=[home for _, _, home in spans] if sort == "grouped" else (),
        overlap=overlap,
    )


def _edges(random: Random, drawn: Drawn) -> set[tuple[int, int]]:
    """Readers: of what has travelled the next task or two to start there, of what has not one of the next on its processor."""
    found: set[tuple[int, int]] = set()
    for (source, there), at in drawn.there.items():
        later = [task for task in drawn.own[there] if drawn.spans[task][0] >= at - 1e-12]
        found |= {(source, task) for task in later[: random.randint(1, 2)]}
    for own in drawn.own.values():
        for place, (source, _) in enumerate(pairwise(own)):
            if random.random() < 0.5:
                found.add((source, random.choice(own[place + 1 : place + 5])))
    return found
