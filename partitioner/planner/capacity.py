"""Tasks and groups that fit nowhere, and memory that cannot suffice, whoever plans: told at once, with the numbers.

Tasks that can run on some devices only, and on no others, must fit into what these hold together. That is looked at for each
set of devices that tasks are bound to: for all devices, for the accelerators alone, and so on.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from math import inf

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.ir.units import format_size

MOST_SETS = 256


def refuse_impossible(problem: Problem) -> None:
    """Refuse a problem with a group that no device can have, or with groups that exceed the memory they are bound to.

    Args:
        problem: the question; one that passes may still be impossible, when groups do not fit side by side.

    Raises:
        PlacementError: there are such. Says how much is needed, what there is, and a cap for each device that would do.
    """
    bound = _bound_to(problem)
    for devices in sorted(bound, key=len)[:MOST_SETS]:
        demands = [need for able, needs in bound.items() if able <= devices for need in needs]
        room = sum(problem.processors[number].memory for number in devices)
        if sum(demands) > room * (1 + 1e-12):
            raise PlacementError(_too_much(problem, sorted(devices), demands, room))


def _bound_to(problem: Problem) -> dict[frozenset[int], list[float]]:
    """What groups need, by the devices that can have them."""
    found: defaultdict[frozenset[int], list[float]] = defaultdict(list)
    known: dict[tuple[bool, ...], frozenset[int]] = {}
    for group, tasks in problem.members.items():
        need = problem.demand[group]
        if len(tasks) == 1 and group not in problem.pin:
            both = zip(problem.seconds, problem.processors, strict=True)
            key = tuple(table[tasks[0]] < inf and need <= each.memory for table, each in both)
            able = known.get(key)
            if able is None:
                able = known[key] = frozenset(number for number, can in enumerate(key) if can)
        else:
            able = frozenset(problem.able(group))
        if not able:
            raise PlacementError(_nowhere(problem, group))
        if need:
            found[able].append(need)
    return found


def _nowhere(problem: Problem, group: int) -> str:
    tasks, need = problem.members[group], problem.demand[group]
    names = ", ".join(problem.tasks[task] for task in tasks[:3]) + (f" and {len(tasks) - 3} more" if len(tasks) > 3 else "")
    lines = [
        f"tasks {names} must share a device and none can have them:" if len(tasks) > 1 else f"task {names} can run nowhere:"
    ]
    for number, device in enumerate(problem.processors):
        lacking = [problem.tasks[task] for task in tasks if problem.seconds[number][task] == inf]
        if problem.pin.get(group, number) != number:
            lines.append(f"  {device.name}: they are pinned to {problem.processors[problem.pin[group]].name}")
        elif lacking:
            lines.append(f"  {device.name}: {lacking[0]} has no seconds for its kind, {problem.kinds[device.kind].name}")
        else:
            lines.append(f"  {device.name}: {format_size(need)} are needed, and its memory is {format_size(device.memory)}")
    lines.append(f"Raise a memory cap, give seconds for another kind{', or make the group smaller' if len(tasks) > 1 else ''}.")
    return "\n".join(lines)


def _too_much(problem: Problem, devices: list[int], demands: list[float], room: float) -> str:
    names = [problem.processors[number].name for number in devices]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    bound = "" if len(devices) == len(problem.processors) else " that can run nowhere else"
    hold = f"hold {format_size(room)} together" if len(names) > 1 else f"holds {format_size(room)}"
    return (
        f"memory cannot suffice: tasks{bound} need {format_size(sum(demands))}, and {shown} {hold}\n"
        f"A cap of {format_size(_level(demands, len(devices)))} on each of them would do, as far as memory goes."
    )


def _level(demands: Iterable[float], devices: int) -> float:
    """The fullest device when the largest demands come first, each to the emptiest device (Graham's LPT rule)."""
    used = [0.0] * devices
    for need in sorted(demands, reverse=True):
        heapq.heapreplace(used, used[0] + need)
    return max(used)
