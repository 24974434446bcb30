"""What others would do with the same problem: a processor for each task, and then one list order and one clock for all.

Min-cut partitioners get groups as vertices, weighed by their seconds, their bytes or both: of several weightings the best
answer that fits counts. HEFT and round robin are written from their definitions. Each respects memory as far as its idea
allows; `fits` says whether it did.

Sources: Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM J. Sci. Comput.
20(1), 1998 (METIS); Schlag et al., "High-quality hypergraph partitioning", ACM JEA 27, 2023 (KaHyPar); Topcuoglu, Hariri and
Wu, IEEE TPDS 13(3), 2002 (HEFT).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partitioner.ir.assignment import Assignment
from partitioner.ir.problem import Problem
from partitioner.planner.assigned import scheduled

Homes = list[int]
"""The processor of each task."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of a vertex's weight, the parts that its bytes may have; its seconds have the rest."""

UNITS = 1_000_000
"""Whole units of weight that the vertices of a graph have together."""

IMBALANCE = 0.05


def answer_of(problem: Problem, name: str, homes: Sequence[int]) -> Assignment:
    """The tasks on their processors' first lanes, the most urgent first: the longest way to the end, with all that is moved."""
    rank = [0.0] * len(problem.tasks)
    for task in reversed(range(len(problem.tasks))):
        rank[task] += problem.seconds[homes[task]][task]
        for source, value in problem.before[task]:
            rank[source] = max(rank[source], rank[task] + _move(problem, value, homes[source], homes[task]))
    order = sorted(range(len(problem.tasks)), key=lambda task: (-rank[task], task))
    return scheduled(problem, name, [problem.first_lane[home] for home in homes], order)


def used(problem: Problem, homes: Sequence[int]) -> list[float]:
    """Bytes that each processor's tasks hold."""
    found = [0.0] * len(problem.processors)
    for task, home in enumerate(homes):
        found[home] += problem.memory[task] if problem.memory else 0.0
    return found


def fits(problem: Problem, homes: Sequence[int]) -> bool:
    """Whether every memory cap holds."""
    return all(held <= each.memory for held, each in zip(used(problem, homes), problem.processors, strict=True))


# By time --------------------------------------------------------------------------------------------------------------


class _Room:
    """Where groups are and what room is left."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.home = problem, dict[int, int]()
        self.left = [each.memory for each in problem.processors]

    def choices(self, task: int) -> list[int]:
        """The processors with room for a task's group, or the one where it is; the roomiest if there is none."""
        group = self.problem.group_of[task]
        if group in self.home:
            return [self.home[group]]
        able = [number for number, left in enumerate(self.left) if self.problem.demand[group] <= left]
        return able or [max(range(len(self.left)), key=self.left.__getitem__)]

    def take(self, task: int, processor: int) -> None:
        group = self.problem.group_of[task]
        if group not in self.home:
            self.home[group] = processor
            self.left[processor] -= self.problem.demand[group]


def round_robin(problem: Problem) -> Homes:
    """Depth by depth, each task to the next processor that has room."""
    depth = [0] * len(problem.tasks)
    for task in range(len(problem.tasks)):
        depth[task] = max((depth[source] + 1 for source, _ in problem.before[task]), default=0)
    room, homes, count = _Room(problem), [0] * len(problem.tasks), len(problem.processors)
    turn: Counter[int] = Counter()
    for task in sorted(range(len(problem.tasks)), key=depth.__getitem__):
        homes[task] = min(room.choices(task), key=lambda number: (number - turn[depth[task]]) % count)
        turn[depth[task]] += 1
        room.take(task, homes[task])
    return homes


def heft(problem: Problem) -> Homes:
    """The processors of `heft_schedule`."""
    return heft_schedule(problem)[0]


def heft_schedule(problem: Problem) -> tuple[Homes, list[float]]:
    """Upward rank with average costs, then the processor on which a task ends first, in a gap if there is one; when each ends.

    As published: links are taken to carry any number of values at once.
    """
    count = len(problem.processors)
    mean = [sum(table[task] for table in problem.seconds) / count for task in range(len(problem.tasks))]
    rank = [0.0] * len(problem.tasks)
    for task in reversed(range(len(problem.tasks))):
        rank[task] += mean[task]
        for source, value in problem.before[task]:
            rank[source] = max(rank[source], rank[task] + _mean_move(problem, value))
    room, homes, ends = _Room(problem), [0] * len(problem.tasks), [0.0] * len(problem.tasks)
    busy: list[list[tuple[float, float]]] = [[] for _ in problem.processors]
    for task in sorted(range(len(problem.tasks)), key=lambda task: (-rank[task], task)):
        tries = []
        for number in room.choices(task):
            ready = max(
                (ends[source] + _move(problem, value, homes[source], number) for source, value in problem.before[task]),
                default=0.0,
            )
            seconds = problem.seconds[number][task]
            tries.append((_gap(busy[number], ready, seconds) + seconds, number))
        ends[task], homes[task] = min(tries)
        room.take(task, homes[task])
        busy[homes[task]].append((ends[task] - problem.seconds[homes[task]][task], ends[task]))
        busy[homes[task]].sort()
    return homes, ends


def _move(problem: Problem, value: int, here: int, there: int) -> float:
    if here == there or value < 0:
        return 0.0
    return sum(problem.channels[channel].seconds(problem.values[value][1]) for channel in problem.routes.get((here, there), ()))


def _mean_move(problem: Problem, value: int) -> float:
    """Between two processors that are not the same."""
    return sum(_move(problem, value, here, there) for here, there in problem.routes) / max(1, len(problem.routes))


def _gap(busy: Sequence[tuple[float, float]], ready: float, seconds: float) -> float:
    for start, end in busy:
        if ready + seconds <= start:
            return ready
        ready = max(ready, end)
    return ready


# By cut ---------------------------------------------------------------------------------------------------------------

Cut = Callable[[Problem, Sequence[int]], list[int]]
"""The processor of each group, in the order of `Problem.members`, for given weights of the groups."""


def metis(problem: Problem, weights: Sequence[int]) -> list[int]:
    """METIS on groups: edges weighed by the bytes that pass over them."""
    import pymetis

    between: list[dict[int, float]] = [{} for _ in weights]
    for pins, size in _passed(problem):
        for other in pins[1:]:
            for one, two in ((pins[0], other), (other, pins[0])):
                between[one][two] = between[one].get(two, 0.0) + size
    starts, ends, sizes = [0], list[int](), list[int]()
    for edges in between:
        ends += edges
        sizes += [1 + round(size / 1024) for size in edges.values()]
        starts.append(len(ends))
    _, parts = pymetis.part_graph(
        len(problem.processors), pymetis.CSRAdjacency(starts, ends), vweights=list(weights), eweights=sizes, recursive=False
    )
    return list(parts)


def kahypar(problem: Problem, weights: Sequence[int]) -> list[int]:
    """Mt-KaHyPar on groups: a hyperedge for each value, so that one that several groups of a part read counts once."""
    import mtkahypar

    solver = _kahypar()
    mtkahypar.set_seed(0)
    context = solver.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
    context.set_partitioning_parameters(len(problem.processors), IMBALANCE, mtkahypar.Objective.KM1)
    context.logging = False
    passed = _passed(problem)
    sizes = [1 + round(size / 1024) for _, size in passed]
    graph = solver.create_hypergraph(context, len(weights), len(passed), [pins for pins, _ in passed], list(weights), sizes)
    found = graph.partition(context)
    return [found.block_id(number) for number in range(len(weights))]


def _kahypar() -> Any:
    """Mt-KaHyPar takes its number of threads once in a process."""
    import mtkahypar

    if not _STARTED:
        _STARTED.append(mtkahypar.initialize(1, False))
    return _STARTED[0]


_STARTED: list[Any] = []


def _passed(problem: Problem) -> list[tuple[list[int], float]]:
    """For each value that groups pass to others: the numbers of its maker's and its readers' groups, and its bytes."""
    number = {group: place for place, group in enumerate(problem.members)}
    found = []
    for (maker, size), readers in zip(problem.values, problem.readers, strict=True):
        pins = dict.fromkeys(number[problem.group_of[task]] for task in (maker, *readers))
        if len(pins) > 1:
            found.append((list(pins), size))
    return found


def cut(problem: Problem, by: Cut) -> Homes:
    """Of a min-cut partitioner's answers for several weightings of the groups, the quickest that fits; else the least full."""
    best: tuple[bool, float, Homes] | None = None
    for share in SHARES if any(problem.memory) else SHARES[:1]:
        parts = by(problem, _weights(problem, share))
        of = dict(zip(problem.members, parts, strict=True))
        homes = [of[group] for group in problem.group_of]
        over = max(held / each.memory for held, each in zip(used(problem, homes), problem.processors, strict=True))
        late = answer_of(problem, "cut", homes).cost if over <= 1 else over
        if best is None or (over > 1, late) < best[:2]:
            best = over > 1, late, homes
    assert best is not None
    return best[2]


def _weights(problem: Problem, share: float) -> list[int]:
    seconds = [sum(problem.seconds[0][task] for task in tasks) for tasks in problem.members.values()]
    held = [problem.demand[group] for group in problem.members]
    work, room = sum(seconds) or 1.0, sum(held) or 1.0
    return [
        1 + round(UNITS * ((1 - share) * own / work + share * size / room)) for own, size in zip(seconds, held, strict=True)
    ]


# By module ------------------------------------------------------------------------------------------------------------


def by_map(problem: Problem, device_map: Mapping[str, Any], states: Sequence[Sequence[str]]) -> Homes:
    """The processors of a map from modules to devices, such as accelerate's.

    Args:
        problem: its processors are numbered as the map's devices are.
        device_map: the device of each module or tensor, by qualified name; one that is no processor is taken to be the last.
        states: names of the parameters and buffers of each task. A task without any runs where what it reads last is made.
    """
    last, votes = len(problem.processors) - 1, defaultdict[int, Counter[int]](Counter)
    for task, names in enumerate(states):
        for name in names:
            device = _longest_match(device_map, name)
            votes[problem.group_of[task]][device if isinstance(device, int) and device <= last else last] += 1
    homes: Homes = []
    for task in range(len(problem.tasks)):
        voted = votes[problem.group_of[task]]
        if voted:
            homes.append(voted.most_common(1)[0][0])
        else:
            homes.append(homes[max(source for source, _ in problem.before[task])] if problem.before[task] else 0)
            voted[homes[-1]] += 1
    return homes


def _longest_match(device_map: Mapping[str, Any], name: str) -> Any:
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    return device_map.get(name)


BASELINES: dict[str, Callable[[Problem], Homes]] = {
    "METIS": lambda problem: cut(problem, metis),
    "KaHyPar": lambda problem: cut(problem, kahypar),
    "HEFT": heft,
    "round robin": round_robin,
}
"""Those that need nothing but the problem, by the name of their column."""
