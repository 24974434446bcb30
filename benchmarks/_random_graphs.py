"""Random task graphs with known optima, and a constraint model that proves them: it shares nothing with the planner's.

In the manner of the Standard Task Graph set (Tobita and Kasahara, J. Scheduling 5, 2002): 50 to 100 tasks of whole seconds, on
2 to 16 equal processors, nothing moved. Beside them graphs cut out of a schedule without gaps, whose length is the optimum
because every processor is busy all the time, and small ones on unequal processors with links that carry one value at a time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, permutations, product
from typing import Any

from _planted_graphs import END, SORTS, planted

from partitioner.ir.problem import ORDER, Channel, Kind, Problem, Processor

LONGEST = 20
"""Seconds of the longest task."""

Pairs = set[tuple[int, int]]


# Graphs ---------------------------------------------------------------------------------------------------------------


def layered(draw: random.Random, tasks: int) -> Pairs:
    """Layers of random width; each task reads one to three of the layer before its own."""
    layers, number = [], 0
    while number < tasks:
        width = min(draw.randint(2, 12), tasks - number)
        layers.append(range(number, number + width))
        number += width
    pairs = set()
    for above, below in pairwise(layers):
        for task in below:
            pairs |= {(source, task) for source in draw.sample(above, min(len(above), draw.randint(1, 3)))}
    return pairs


def erdos_renyi(draw: random.Random, tasks: int) -> Pairs:
    """Each pair of tasks, in order of their numbers, with the same chance: three edges a task on average."""
    chance = 6.0 / tasks
    return {(one, two) for two in range(tasks) for one in range(two) if draw.random() < chance}


def series_parallel(draw: random.Random, tasks: int) -> Pairs:
    """Parts one after the other or side by side, down to single tasks."""

    def split(first: int, last: int, series: bool) -> tuple[list[int], list[int]]:
        """The tasks that begin and that end ``first .. last - 1``."""
        if last - first == 1:
            return [first], [first]
        cuts = sorted(draw.sample(range(first + 1, last), min(draw.randint(1, 3), last - first - 1)))
        parts = [split(one, two, not series) for one, two in zip([first, *cuts], [*cuts, last], strict=True)]
        if not series:
            return [task for part in parts for task in part[0]], [task for part in parts for task in part[1]]
        for one, two in pairwise(parts):
            pairs.update(product(one[1], two[0]))
        return parts[0][0], parts[-1][1]

    pairs: Pairs = set()
    split(0, tasks, series=True)
    return pairs


FAMILIES: dict[str, Callable[[random.Random, int], Pairs]] = {
    "layered": layered,
    "erdos-renyi": erdos_renyi,
    "series-parallel": series_parallel,
}


def on_equal_processors(family: str, seed: int, processors: int) -> Problem:
    """A graph of 50 to 100 tasks of a family; its optimum is not known yet."""
    draw = random.Random(f"{family} {seed} {processors}")
    tasks = draw.randint(50, 100)
    seconds = [float(draw.randint(1, LONGEST)) for _ in range(tasks)]
    return _equal(f"{family}-{tasks}", seconds, FAMILIES[family](draw, tasks), processors)


def cut_from_a_schedule(seed: int, processors: int) -> tuple[Problem, float]:
    """A graph and its optimum: each processor's whole time is cut into tasks; edges lead from what ends to what starts later.

    >>> problem, optimum = cut_from_a_schedule(0, 4)
    >>> sum(problem.kinds[0].seconds[1]) == 4 * optimum
    True
    """
    draw = random.Random(f"cut {seed} {processors}")
    length, each = 100, 75 // processors
    spans = []
    for _ in range(processors):
        cuts = sorted(draw.sample(range(1, length), each - 1))
        spans += list(zip([0, *cuts], [*cuts, length], strict=True))
    spans.sort()
    pairs = set()
    for target, (start, _) in enumerate(spans):
        ended = [source for source, span in enumerate(spans) if start - LONGEST <= span[1] <= start]
        pairs |= {(source, target) for source in draw.sample(ended, min(len(ended), draw.randint(1, 3)))}
    return _equal(f"cut-{len(spans)}", [float(end - start) for start, end in spans], pairs, processors), float(length)


def with_links(family: str, seed: int, processors: int) -> Problem:
    """A graph of ten to fourteen tasks whose seconds differ by processor, and whose values take a few seconds over a link."""
    draw = random.Random(f"links {family} {seed} {processors}")
    tasks = draw.randint(10, 14)
    pairs = FAMILIES[family](draw, tasks)
    kinds = tuple(Kind(f"kind{number}", {1: _whole(draw, tasks)}) for number in range(processors))
    ways = list(permutations(range(processors), 2))
    makers = sorted({source for source, _ in pairs})
    return Problem(
        f"{family}-{tasks}-links",
        tuple(f"t{task}" for task in range(tasks)),
        kinds,
        tuple(Processor(f"p{number}", number) for number in range(processors)),
        [(source, target, makers.index(source)) for source, target in sorted(pairs)],
        [(source, float(draw.randint(0, 8))) for source in makers],
        tuple(Channel(f"{one} -> {two}", 1.0, 1.0, (one, two)) for one, two in ways),
        {way: (number,) for number, way in enumerate(ways)},
    )


def _whole(draw: random.Random, tasks: int) -> list[float]:
    return [float(draw.randint(1, LONGEST)) for _ in range(tasks)]


def _equal(name: str, seconds: list[float], pairs: Pairs, processors: int) -> Problem:
    return Problem(
        f"{name} on {processors}",
        tuple(f"t{task}" for task in range(len(seconds))),
        (Kind("processor", {1: seconds}),),
        tuple(Processor(f"p{number}", 0) for number in range(processors)),
        [(source, target, ORDER) for source, target in sorted(pairs)],
    )


# Optima ---------------------------------------------------------------------------------------------------------------


def optimum(problem: Problem, limit: float) -> tuple[float, bool]:
    """The shortest makespan of a graph of whole seconds, and whether it is proven; if it is not, a bound that holds.

    Args:
        problem: of this file: one lane a processor, no hand-offs, routes of one channel.
        limit: seconds that the solver may take.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    horizon = int(sum(max(kind.seconds[1][task] for kind in problem.kinds) for task in range(len(problem.tasks))))
    horizon += int(sum(channel.seconds(size) for channel in problem.channels for _, size in problem.values))
    span = model.new_int_var(0, horizon, "makespan")
    starts = [model.new_int_var(0, horizon, f"start {task}") for task in range(len(problem.tasks))]
    ends = _equal_model(model, problem, starts) if len(problem.kinds) == 1 else _unequal_model(model, problem, starts, horizon)
    for end in ends:
        model.add(end <= span)
    if len(problem.kinds) == 1:
        model.add(
            len(problem.processors) * span >= int(sum(problem.kinds[0].seconds[1]))
        )  # said once more: the solver is slow to see it
    model.minimize(span)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit
    proven = solver.solve(model) == cp_model.OPTIMAL
    return float(round(solver.best_objective_bound)), proven


def _equal_model(model: Any, problem: Problem, starts: list[Any]) -> list[Any]:
    """Equal processors are one resource of which each task takes a unit."""
    seconds = [int(each) for each in problem.kinds[0].seconds[1]]
    intervals = [model.new_fixed_size_interval_var(start, own, "") for start, own in zip(starts, seconds, strict=True)]
    model.add_cumulative(intervals, [1] * len(intervals), len(problem.processors))
    ends = [start + own for start, own in zip(starts, seconds, strict=True)]
    for source, target, _ in problem.edges:
        model.add(starts[target] >= ends[source])
    return ends


def _unequal_model(model: Any, problem: Problem, starts: list[Any], horizon: int) -> list[Any]:
    """Each task is on one processor, and each value goes over each link behind which it is read, once."""
    count = len(problem.processors)
    on = [[model.new_bool_var("") for _ in range(count)] for _ in problem.tasks]
    ends = []
    busy: defaultdict[str, list[Any]] = defaultdict(list)
    for task, choices in enumerate(on):
        model.add_exactly_one(choices)
        seconds = [int(problem.kinds[each.kind].seconds[1][task]) for each in problem.processors]
        ends.append(starts[task] + sum(own * choice for own, choice in zip(seconds, choices, strict=True)))
        for number, choice in enumerate(choices):
            busy[f"processor {number}"].append(
                model.new_optional_interval_var(starts[task], seconds[number], starts[task] + seconds[number], choice, "")
            )
    for value, (maker, size) in enumerate(problem.values):
        readers = [target for _, target, read in problem.edges if read == value]
        for one, two, goes, start, length in _passages(model, problem, size, horizon):
            busy[f"link {one} {two}"].append(model.new_optional_interval_var(start, length, start + length, goes, ""))
            model.add(start >= ends[maker]).only_enforce_if(goes)
            for reader in readers:
                model.add(starts[reader] >= ends[maker])
                model.add_implication(on[maker][one], goes).only_enforce_if(on[reader][two])
                model.add(starts[reader] >= start + length).only_enforce_if([on[maker][one], on[reader][two]])
    for each in busy.values():
        model.add_no_overlap(each)
    return ends


def _passages(model: Any, problem: Problem, size: float, horizon: int) -> Iterator[tuple[int, int, Any, Any, int]]:
    """Both ends of each link, whether a value of ``size`` bytes goes over it, when, and for how long."""
    for (one, two), (channel,) in problem.routes.items():
        seconds = int(problem.channels[channel].seconds(size))
        yield one, two, model.new_bool_var(""), model.new_int_var(0, horizon, ""), seconds


Known = tuple[Problem, float, bool]
"""A problem, its optimum, and whether it is proven; if it is not, a bound."""


def kinds_of_graph(sizes: Sequence[int], seeds: int, limit: float) -> Iterator[tuple[str, str, Iterator[Known]]]:
    """Everything in this file: a name, the numbers of processors, and problems that are made as they are asked for.

    Args:
        sizes: numbers of equal processors.
        seeds: graphs of each kind and size.
        limit: seconds that the proof of each optimum may take.
    """

    def proven(make: Callable[[int, int], Problem], processors: Sequence[int]) -> Iterator[Known]:
        for problem in (make(seed, count) for count in processors for seed in range(seeds)):
            yield (problem, *optimum(problem, limit))

    counts = ", ".join(map(str, sizes))
    for family in FAMILIES:
        yield family, counts, proven(partial(on_equal_processors, family), sizes)
    cut = (cut_from_a_schedule(seed, count) for count in sizes for seed in range(seeds))
    yield "cut from a schedule", counts, ((problem, known, True) for problem, known in cut)
    for family in FAMILIES:
        yield f"{family}, unequal, links", "2, 3", proven(partial(with_links, family), (2, 3))
    for (sort, options), each in product(SORTS.items(), (5, 10, 19)):
        full = (planted(random.Random(seed), 4, each, **options) for seed in range(seeds))
        yield f"cut from a schedule, unequal, {sort}, {4 * each} tasks", "4", ((problem, END, True) for problem in full)
