"""Where a task may still go: pins, groups that are already somewhere, memory, contiguity. Shared by every policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil, inf

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.ir.units import format_size
from partitioner.ir.words import printable


class Feasible:
    """What has been given to which processor so far, task after task in an order that respects every edge.

    Groups of tasks that must share a processor are reserved as a whole when the first of them is placed, and groups that can
    go to one processor only before all others, so that a later one never finds its processor full.

    Raises:
        PlacementError: a group can run nowhere, or pinned ones exceed a processor's memory.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.home: dict[int, int] = {}
        self.used = [0.0] * len(problem.processors)
        self.able = problem.able
        for group, able in self.able.items():
            if not able:
                raise PlacementError(nowhere(problem, group))
        for group, able in self.able.items():
            if len(able) == 1:
                self._reserve(group, able[0])
        # Processors that some path to a task has left, as bits; forward tasks only.
        self._left = [0] * len(problem.tasks) if problem.contiguous else None
        self._placed: list[int] = [-1] * len(problem.tasks) if problem.contiguous else []

    def _reserve(self, group: int, processor: int) -> None:
        if self.used[processor] + self.problem.demand[group] > self.problem.caps[processor]:
            raise PlacementError(self._full(self.problem.members[group][0]))
        self.home[group] = processor
        self.used[processor] += self.problem.demand[group]

    def processors(self, task: int) -> Sequence[int]:
        """The processors that ``task`` may go to.

        Raises:
            PlacementError: it fits nowhere any more.
        """
        group = self.problem.group_of[task]
        fixed = self.home.get(group)
        allowed: Sequence[int]
        if fixed is not None:
            allowed = (fixed,)
        elif not self.problem.demand[group]:
            allowed = self.able[group]
        else:
            allowed = [number for number in self.able[group] if self._fits(number, group)]
        if not allowed:
            raise PlacementError(self._full(task))
        if self._left is not None and task not in self.problem.backward:
            roomy = allowed
            allowed = [number for number in roomy if not self._left_by(task, number) >> number & 1]
            if not allowed:
                raise PlacementError(self._back(task, roomy))
        return allowed

    def _left_by(self, task: int, processor: int) -> int:
        assert self._left is not None
        left = 0
        for source, _ in self.problem.before[task]:
            if source not in self.problem.backward:
                left |= self._left[source]
                if self._placed[source] != processor:
                    left |= 1 << self._placed[source]
        return left

    def assign(self, task: int, processor: int) -> None:
        """Note that ``task`` goes to ``processor``."""
        group = self.problem.group_of[task]
        if group not in self.home:
            self.home[group] = processor
            self.used[processor] += self.problem.demand[group]
        if self._left is not None:
            self._left[task] = self._left_by(task, processor)
            self._placed[task] = processor

    def _fits(self, processor: int, group: int) -> bool:
        return self.used[processor] + self.problem.demand[group] <= self.problem.caps[processor]

    def _back(self, task: int, roomy: Sequence[int]) -> str:
        names = ", ".join(printable(self.problem.processors[number].name) for number in roomy)
        return (
            f"task {called(self.problem, task)} has room on {names} only, and there a path would come back to a device that it "
            f"has left\nAnother policy may find an answer; without contiguity there may be one, too."
        )

    def _full(self, task: int) -> str:
        problem = self.problem
        need = format_size(int(problem.demand[problem.group_of[task]]))
        lines = [f"task {called(problem, task)} needs {need} of {what_is_held(problem)}, and no device has room:"]
        for number, device in enumerate(problem.processors):
            cap = "no cap" if device.memory == float("inf") else format_size(int(device.memory))
            lines.append(f"  {printable(device.name)}: {format_size(int(self.used[number]))} used of {cap}")
        lines.append(remedy(problem))
        return "\n".join(lines)


def what_is_held(problem: Problem) -> str:
    """What the memory of tasks is, in words: a model's is known to be its state."""
    return "parameters and buffers (and of what training keeps for them)" if problem.labels else "memory"


def called(problem: Problem, task: int) -> str:
    """The name of a task and, of a model's, the first of its ops: who reads an error knows those."""
    ops = problem.labels[task].split() if problem.labels else []
    more = f" and {len(ops) - 2} more" if len(ops) > 2 else ""
    name = printable(problem.tasks[task])
    return f"{name} ({', '.join(ops[:2])}{more})" if ops else name


def remedy(problem: Problem) -> str:
    """What to do where memory does not suffice, or contiguity asks for too much."""
    if problem.contiguous and (most := _even_cap(problem)) is not None and most <= min(problem.caps):
        return "Without contiguity all of it fits: leave that out, or let tasks run on more kinds of devices."
    return f"Raise a memory cap, add a device, or remove a pin.{enough(problem)}"


def enough(problem: Problem) -> str:
    """A sentence with a cap for each device under which all fits that tasks hold; none where no cap helps, or for a model."""
    most = _even_cap(problem)
    if most is None:
        return ""
    short = f" ({format_size(most)})" if most >= 1024 else ""
    return f" A cap of {most} B{short} on each device would do, as far as memory goes."


def _even_cap(problem: Problem) -> int | None:
    """A cap for each device under which all fits that tasks hold, contiguous or not; ``None`` if no cap helps, or for a model.

    It is the fullest device when the largest group comes first, each to the emptiest device that can run it (Graham's LPT
    rule). For a model `lower/room.py` says what would do, for values between tasks take memory, too.
    """
    if problem.labels:
        return None
    used = [0.0] * len(problem.processors)
    for group in sorted(problem.members, key=lambda group: -problem.demand[group]):
        tasks, pinned = problem.members[group], problem.pin.get(group)
        places = range(len(used)) if pinned is None else (pinned,)
        ways = [each for each in places if all(problem.seconds[each][task] < inf for task in tasks)]
        if not ways:
            return None
        used[min(ways, key=used.__getitem__)] += problem.demand[group]
    return ceil(max(used))


def nowhere(problem: Problem, group: int) -> str:
    """Why no processor can have a group."""
    tasks, need = problem.members[group], problem.demand[group]
    names = ", ".join(called(problem, task) for task in tasks[:3]) + (f" and {len(tasks) - 3} more" if len(tasks) > 3 else "")
    lines = [f"task {names} can run nowhere:"]
    if len(tasks) > 1:
        why = ", so that no path leaves it and comes back," if problem.contiguous else ""
        lines = [f"tasks {names} must share a device{why} and none can have them:"]
    for number, device in enumerate(problem.processors):
        lacking = [problem.tasks[task] for task in tasks if problem.seconds[number][task] == inf]
        if problem.pin.get(group, number) != number:
            pinned = printable(problem.processors[problem.pin[group]].name)
            lines.append(f"  {printable(device.name)}: they are pinned to {pinned}")
        elif lacking:
            task, kind = printable(lacking[0]), printable(problem.kinds[device.kind].name)
            lines.append(f"  {printable(device.name)}: {task} has no seconds for its kind, {kind}")
        else:
            held, cap = f"{format_size(need)} of {what_is_held(problem)}", format_size(device.memory)
            lines.append(f"  {printable(device.name)}: {held} are needed, and it has {cap}")
    kind = "" if problem.labels else ", give seconds for another kind"
    lines.append(f"Raise a memory cap{kind}{', or make the group smaller' if len(tasks) > 1 else ''}.{enough(problem)}")
    return "\n".join(lines)


def returns(problem: Problem, homes: Sequence[int]) -> Iterator[int]:
    """The tasks at which a path comes back to a processor that it has left; backward tasks are left out.

    Example:
        >>> from partitioner.ir.problem import ORDER, Kind, Processor
        >>> row = Kind("gpu", {1: [1.0] * 3})
        >>> both = (Processor("x", 0), Processor("y", 0))
        >>> chain = Problem("chain", ("a", "b", "c"), (row,), both, [(0, 1, ORDER), (1, 2, ORDER)])
        >>> list(returns(chain, [0, 1, 0])), list(returns(chain, [0, 0, 1]))
        ([2], [])
    """
    left = [0] * len(homes)
    for task, here in enumerate(homes):
        if task in problem.backward:
            continue
        for source, _ in problem.before[task]:
            if source not in problem.backward:
                left[task] |= left[source] | (1 << homes[source] if homes[source] != here else 0)
        if left[task] >> here & 1:
            yield task


def between(problem: Problem, group_of: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of groups that contiguity joins: a task of the second lies on a path between two tasks of the first.

    Of pairs that follow from others, as there are very many, most are left out.

    Args:
        problem: whose tasks they are; paths go over forward tasks alone.
        group_of: the group of each task.

    Example:
        >>> from partitioner.ir.problem import ORDER, Kind, Processor
        >>> row, edges = Kind("gpu", {1: [1.0] * 3}), [(0, 1, ORDER), (1, 2, ORDER)]
        >>> list(between(Problem("chain", ("a", "b", "c"), (row,), (Processor("x", 0),), edges), [0, 1, 0]))
        [(0, 1)]
    """
    large = [group for group, count in Counter(group_of).items() if count > 1]
    if not large:
        return
    bit = {group: 1 << number for number, group in enumerate(large)}
    below, above = _met(problem, group_of, bit, False), _met(problem, group_of, bit, True)
    joined: list[tuple[int, int]] = []  # groups that pairs so far have made one, as bits, and the number of one of them
    for task, group in enumerate(group_of):
        both = below[task] & above[task] & ~bit.get(group, 0)
        if not both:
            continue
        whole = both | bit.get(group, 0)
        met = [each for each in joined if each[0] & whole]
        known = sum(each for each, _ in met)
        first, *others = [one for _, one in met] + bits(whole & ~known)
        if others:
            yield from ((large[first], large[other]) for other in others)
            joined = [each for each in joined if not each[0] & whole] + [(known | whole, first)]
        if group not in bit:
            yield large[first], group


def bits(mask: int) -> list[int]:
    """The numbers of the bits of a mask that are set.

    >>> bits(0b1011)
    [0, 1, 3]
    """
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def _met(problem: Problem, group_of: Sequence[int], bit: dict[int, int], upward: bool) -> list[int]:
    """The large groups, as bits, that paths of forward tasks to each task have met; or that paths from it will meet."""
    met = [0 if task in problem.backward else bit.get(group, 0) for task, group in enumerate(group_of)]
    for task in reversed(range(len(met))) if upward else range(len(met)):
        if task not in problem.backward:
            for source, _ in problem.before[task]:
                if source not in problem.backward:
                    if upward:
                        met[source] |= met[task]
                    else:
                        met[task] |= met[source]
    return met
