"""Where a task may go, as the exact model and beams see it: processors and lanes that cannot be told apart count as one.

cpu/0 cpu/1 cpu/2   no hand-off between lanes     one pool of three: which of them a task has can be found afterwards
gpu0  gpu1          equal, links between them     two sites
acc   acc   acc     equal, nothing to move        one site, one pool of three
"""

from __future__ import annotations

from dataclasses import dataclass

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
    free = each.handoff == 0 and not problem.crowded and not (each.lanes > 1 and problem.kinds[each.kind].share is not None)
    rules = problem.pin or problem.contiguous or any(problem.routes.values()) or len(problem.members) < len(problem.tasks)
    return (each.kind, id(problem.seconds[number])) if free and not rules else number
