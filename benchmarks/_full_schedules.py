"""Plans beside answers that are known: of `_exchanged_graphs`, `_parted_graphs`, `_shared_graphs` and `_known_optima`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from random import Random
from statistics import fmean
from time import perf_counter

from _exchanged_graphs import Sort, exchanged
from _known_optima import FAMILIES
from _parted_graphs import SHAPES, Shape, parted
from _planted_graphs import END
from _scorers import known_faults
from _shared_graphs import SHAPES as SHARED
from _shared_graphs import shared

from partitioner.planner.policies import Auto, List

SIZES = ((100, 4), (300, 4), (300, 16), (1000, 4), (1000, 16))
"""Tasks and processors."""

SORTS: Sequence[Sort] = ("unequal", "grouped")
"""Those of which it is known that nothing is shorter."""

Tried = Callable[[str, Callable[[], Sequence[object]]], Sequence[object]]


def compared(quick: bool, show: Callable[[Sequence[str], Sequence[Sequence[object]]], None], tried: Tried) -> None:
    """Print by how much `list` and `auto` are above the optimum, and what is proven below it."""
    head = ["tasks are", "values travel", "tasks", "processors", "`list` above", "`auto` above", "proven bound below"]
    limit = 1.0 if quick else 5.0
    cases = product(SORTS, (True, False), SIZES[:1] if quick else SIZES)
    show(head, [tried(sort, partial(_row, sort, overlap, *size, limit)) for sort, overlap, size in cases])


def _row(sort: Sort, overlap: bool, tasks: int, processors: int, limit: float) -> list[object]:
    """Of two graphs, whose values go over the host and over direct links."""
    asked = [exchanged(Random(1), processors, tasks, sort, overlap, host) for host in (True, False)]
    answers = [(List()(each), Auto(time_limit=limit)(each)) for each in asked]
    above = [f"{fmean(each.cost for each in own) / END - 1:.2%}" for own in zip(*answers, strict=True)]
    below = 1 - fmean(max(each.bound for each in own) for own in answers) / END
    return [sort, "while tasks run" if overlap else "while nothing runs", tasks, processors, *above, f"{max(0.0, below):.2%}"]


def parts(quick: bool, show: Callable[[Sequence[str], Sequence[Sequence[object]]], None], tried: Tried) -> None:
    """Print by how much loads are above those of the known parts, for throughput."""
    head = ["parts", "asked for", "tasks", "kinds of 8 processors", "`list` above", "`auto` above"]
    cases = product(SHAPES[:1] if quick else SHAPES, (True, False), (300,) if quick else (300, 1000, 3000), (8, 4))
    show(head, [tried(shape, partial(_parts_row, shape, *each, 1.0 if quick else 10.0)) for shape, *each in cases])


def _parts_row(shape: Shape, contiguous: bool, tasks: int, kinds: int, limit: float) -> list[object]:
    """Of two graphs, whose values go over the host and over direct links."""
    asked = [replace(parted(Random(host), 8, tasks, shape, host, kinds), contiguous=contiguous) for host in (True, False)]
    answers = [[policy(each).cost for each in asked] for policy in (List(), Auto(time_limit=limit))]
    rule = "contiguous" if contiguous else "any"
    return [shape, rule, tasks, kinds, *(f"{fmean(own) / END - 1:.2%}" for own in answers)]


def strips(quick: bool, show: Callable[[Sequence[str], Sequence[Sequence[object]]], None], tried: Tried) -> None:
    """Print by how much contiguous makespans are above what is proven."""
    head = ["graph", "tasks", "`list` above", "seconds", "`auto` above"]
    cases = product(SHARED, (100,) if quick else (100, 300, 1000, 3000, 10_000))
    show(head, [tried(shape, partial(_strips_row, shape, count, 1.0 if quick else 5.0)) for shape, count in cases])


def _strips_row(shape: str, count: int, limit: float) -> list[object]:
    problem = shared(shape, count)
    began = perf_counter()
    answer = List()(problem)
    taken = perf_counter() - began
    above = [f"{each.cost / each.bound - 1:.2%}" for each in (answer, Auto(time_limit=limit)(problem))]
    return [shape, count, above[0], f"{taken:.2f}", above[1]]


def theory(quick: bool, show: Callable[[Sequence[str], Sequence[Sequence[object]]], None], tried: Tried) -> list[str]:
    """Print by how much costs are above optima that theory knows; returns what is wrong with answers, and what failed."""
    head = ["family", "graphs", "tasks", "`list` above", "worst", "`auto` above", "worst", "largest gap printed", "faults"]
    wrong: list[str] = []
    rows = [tried(name, partial(_theory_row, name, quick, wrong)) for name in FAMILIES]
    show(head, rows)
    wrong += [" ".join(map(str, row)) for row in rows if len(row) < len(head)]
    print(*("", *wrong) if wrong else (), sep="\n")
    return wrong


def _theory_row(name: str, quick: bool, wrong: list[str]) -> list[object]:
    """Of the smallest graph, if it has to be quick; ``wrong`` gets the faults of all answers."""
    graphs = list(islice(FAMILIES[name](), 1 if quick else None))
    sides = [[policy(problem) for problem, _ in graphs] for policy in (List(), Auto(time_limit=1.0 if quick else 4.0))]
    faults = [
        f"{name}, {len(problem.tasks)} tasks, {each.policy}: {fault}"
        for side in sides
        for (problem, optimum), each in zip(graphs, side, strict=True)
        for fault in known_faults(problem, optimum, each)
    ]
    wrong += faults
    above = [[each.cost / optimum - 1 for each, (_, optimum) in zip(side, graphs, strict=True)] for side in sides]
    sizes = sorted(len(problem.tasks) for problem, _ in graphs)
    figures = [f"{max(0.0, figure):.2%}" for own in above for figure in (fmean(own), max(own))]
    gap = f"{max(each.gap for each in sides[1]):.2%}"
    return [name, len(graphs), f"{sizes[0]} to {sizes[-1]}", *figures, gap, faults[0] if faults else "none"]
