"""Where a task may go, as the exact model sees it: processors and lanes that cannot be told apart count as one.

cpu/0 cpu/1 cpu/2   no hand-off between lanes     one pool of three: which of them a task has can be found afterwards
gpu0  gpu1          equal, links between them     two sites that may change names: the first task goes to the first
acc   acc   acc     equal, nothing to move        one site, one pool of three
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from partitioner.ir.problem import Problem


@dataclass(frozen=True)
class Pool:
    """Lanes of which a task has any one.

    Args:
        site: number of the site they belong to.
        lanes: their numbers.
        wait: seconds from the end of a task outside to the start of one here; also before the first task, and after a last one.
        first: whether the caller's own lane is one of them.
    """

    site: int
    lanes: tuple[int, ...]
    wait: float
    first: bool


@dataclass(frozen=True)
class Site:
    """Processors that groups have in common with nobody else: one, or several equal ones that are free to exchange all.

    Args:
        processors: their numbers.
        pools: the numbers of their pools.
    """

    processors: tuple[int, ...]
    pools: tuple[int, ...]


def sites(problem: Problem) -> tuple[list[Site], list[Pool]]:
    """The sites and pools of a problem.

    >>> from partitioner.ir.problem import Kind, Problem, Processor
    >>> bag = Problem("bag", ("a",), (Kind("cpu", {1: [1.0]}),), (Processor("x", 0, lanes=2), Processor("y", 0)), [])
    >>> sites(bag)[1]
    [Pool(site=0, lanes=(0, 1, 2), wait=0.0, first=True)]
    """
    merged: dict[object, list[int]] = {}
    for number in range(len(problem.processors)):
        merged.setdefault(_likeness(problem, number), []).append(number)
    found: list[Site] = []
    pools: list[Pool] = []
    for processors in merged.values():
        lanes = tuple(lane for lane, home in enumerate(problem.lanes) if home in processors)
        wait = problem.processors[processors[0]].handoff
        parts = [lanes] if not wait else [(lane,) for lane in lanes]
        found.append(Site(tuple(processors), tuple(range(len(pools), len(pools) + len(parts)))))
        pools += [Pool(len(found) - 1, part, wait, 0 in part) for part in parts]
    return found, pools


def _likeness(problem: Problem, number: int) -> object:
    """What processors of one site have in common; the number itself where a processor must be a site of its own."""
    each = problem.processors[number]
    free = each.handoff == 0 and each.memory == inf and not (each.lanes > 1 and problem.kinds[each.kind].share is not None)
    rules = problem.pin or problem.contiguous or any(problem.routes.values()) or len(problem.members) < len(problem.tasks)
    return (each.kind, id(problem.seconds[number])) if free and not rules else number


def alike(problem: Problem, found: Sequence[Site]) -> list[list[int]]:
    """Sites that may change names with each other: equal processors with equal ways to all others; at least two of a sort."""
    classes: list[list[int]] = []
    for number, site in enumerate(found):
        for each in classes:
            if _exchange(problem, found[each[0]], site):
                each.append(number)
                break
        else:
            classes.append([number])
    return [each for each in classes if len(each) > 1]


def _exchange(problem: Problem, one: Site, other: Site) -> bool:
    """Whether nothing changes when two sites change places."""
    if len(one.processors) > 1 or len(other.processors) > 1:
        return False
    here, there = one.processors[0], other.processors[0]
    first, second = problem.processors[here], problem.processors[there]
    same = (first.kind, first.lanes, first.memory, first.handoff) == (second.kind, second.lanes, second.memory, second.handoff)
    special = first.handoff > 0 and 0 in (here, there)
    if not same or special or problem.seconds[here] is not problem.seconds[there] or {here, there} & set(problem.pin.values()):
        return False
    turned = {here: there, there: here}
    image: dict[int, int] = {}
    for (source, target), route in problem.routes.items():
        mapped = problem.routes.get((turned.get(source, source), turned.get(target, target)), ())
        if len(mapped) != len(route) or any(image.setdefault(a, b) != b for a, b in zip(route, mapped, strict=True)):
            return False
    equal = all(_like(problem, a, b, turned) for a, b in image.items())
    return equal and len(set(image.values())) == len(image)


def _like(problem: Problem, one: int, other: int, turned: dict[int, int]) -> bool:
    first, second = problem.channels[one], problem.channels[other]
    ends = {turned.get(end, end) for end in first.ends}
    return (first.bandwidth, first.latency) == (second.bandwidth, second.latency) and ends == set(second.ends)
