"""Consecutive groups for each processor, in topological order: the fewest segments that memory takes, cut where least passes.

    groups in the order of their first task   a  b | c  d  e | f        segments, each within its processor's memory
    bytes that pass over each cut             12 5   3 ...

Dynamic programming: of all cuts into the fewest segments that fit, those over which the fewest bytes pass, and of those the one
that fills processors most evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from partitioner.ir.problem import Problem

MOST_CUTS, BLOCKS_PER_PROCESSOR = 1000, 32
"""Places for cuts that are looked at, in all, and of one processor's memory at least."""


def fewest_segments(problem: Problem) -> tuple[dict[int, int] | None, int]:
    """The processor of each group, or ``None`` where no row of processors takes segments; and how many were needed."""
    usable = _usable(problem)
    for count in range(_fewest(problem, usable), len(usable) + 1):
        home = segments(problem, usable[:count])
        if home is not None:
            return home, count
    return None, len(usable)


def _usable(problem: Problem) -> list[int]:
    """Processors in the order in which they are filled: those that are pinned to, then the roomiest, then as given."""
    pinned = set(problem.pin.values())
    return sorted(range(len(problem.processors)), key=lambda each: (each not in pinned, -problem.processors[each].memory, each))


def _fewest(problem: Problem, usable: list[int]) -> int:
    """Processors without which the memory cannot suffice, however groups are shared out."""
    need = sum(problem.demand.values())
    for count, each in enumerate(usable, 1):
        need -= problem.caps[each]
        if need <= 0:
            return count
    return len(usable) + 1


def segments(problem: Problem, processors: Sequence[int]) -> dict[int, int] | None:
    """Consecutive groups for each of ``processors``, which are taken in the order of their numbers."""
    groups = sorted(problem.members, key=lambda group: problem.members[group][0])
    if problem.contiguous and any(_scattered(problem, group) for group in groups):
        return None
    if len(processors) == 1:
        return dict.fromkeys(groups, processors[0]) if _holds_all(problem, processors[0]) else None
    ordered, crossing = sorted(processors), _crossing(problem, groups)
    cuts = _cuts(problem, groups, crossing)
    blocks = [groups[start:end] for start, end in pairwise(cuts)]
    over = [crossing[cut] for cut in cuts[1:-1]] + [0.0]
    # best[i]: (bytes over cuts, sum of squared fills, starts of the segments) of the first i blocks on the processors so far
    best: Best = [None] * (len(blocks) + 1)
    best[0] = (0.0, 0.0, ())
    need = [sum(problem.demand[group] for group in block) for block in blocks]
    able = [_able(problem, block) for block in blocks]
    for processor in ordered:
        fits = [processor in each for each in able]
        best = _extended(best, need, over, fits, problem.caps[processor])
    found = best[len(blocks)]
    if found is None:
        return None
    bounds = [cuts[start] for start in (*found[2], len(blocks))]
    return {group: ordered[number] for number, (start, end) in enumerate(pairwise(bounds)) for group in groups[start:end]}


def _holds_all(problem: Problem, processor: int) -> bool:
    """Whether one processor may have every group, and has room for all."""
    if sum(problem.demand.values()) > problem.caps[processor]:
        return False
    return processor in _able(problem, list(problem.able))


Best = list[tuple[float, float, tuple[int, ...]] | None]


def _cuts(problem: Problem, groups: list[int], crossing: list[float]) -> list[int]:
    """Positions at which segments may end. Of very many, in each stretch that over which the fewest bytes pass."""
    count = len(groups)
    if count <= MOST_CUTS:
        return list(range(count + 1))
    width = -(-count // MOST_CUTS)
    most = min((each.memory for each in problem.processors), default=inf) / BLOCKS_PER_PROCESSOR
    found, held_so_far = [0], 0.0
    for start in range(0, count, width):
        held_so_far += sum(problem.demand[group] for group in groups[start : start + width])
        stretch = range(max(start, 1), min(start + width, count))
        if stretch and (held_so_far > most or len(found) <= start // width):
            found.append(min(stretch, key=crossing.__getitem__))
            held_so_far = 0.0
    return [*found, count]


def _extended(best: Best, need: list[float], over: list[float], fits: list[bool], memory: float) -> Best:
    """The best cuts with one processor more, which takes none, one or several blocks."""
    found: Best = [None if each is None else (each[0], each[1], (*each[2], number)) for number, each in enumerate(best)]
    for start, state in enumerate(best):
        if state is None:
            continue
        used = 0.0
        for end in range(start + 1, len(need) + 1):
            used += need[end - 1]
            if used > memory or not fits[end - 1]:
                break
            fill = used / memory if 0 < memory < inf else 0.0
            cost = (state[0] + over[end - 1], state[1] + fill * fill)
            known = found[end]
            if known is None or cost < known[:2]:
                found[end] = (*cost, (*state[2], start))
    return found


def _able(problem: Problem, block: list[int]) -> set[int]:
    """The processors that can have every group of a block. Groups that can have the same ones share a list."""
    lists = {id(problem.able[group]): problem.able[group] for group in block}
    return set.intersection(*map(set, lists.values()))


def _crossing(problem: Problem, groups: list[int]) -> list[float]:
    """Bytes that pass over a cut before each position: of values that are made before it and read behind it."""
    position = {group: number for number, group in enumerate(groups)}
    change = [0.0] * (len(groups) + 1)
    for (maker, size), readers in zip(problem.values, problem.readers, strict=True):
        at = position[problem.group_of[maker]]
        last = max((position[problem.group_of[reader]] for reader in readers), default=at)
        if last > at:
            change[at + 1] += size
            change[last + 1] -= size
    total, found = 0.0, []
    for each in change:
        total += each
        found.append(total)
    return found


def _scattered(problem: Problem, group: int) -> bool:
    """Whether other groups' tasks lie between those of a group, so that consecutive groups may not be contiguous."""
    tasks = [task for task in problem.members[group] if task not in problem.backward]
    return len(tasks) > 1 and tasks[-1] - tasks[0] >= len(tasks)
