"""Tasks and groups that fit nowhere, and memory that cannot suffice, whoever plans: told at once, with the numbers.

Tasks that can run on some devices only, and on no others, must fit into what these hold together. That is looked at for each
set of devices that tasks are bound to: for all devices, for the accelerators alone, and so on.
"""

from __future__ import annotations

from collections import defaultdict

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.ir.units import format_size
from partitioner.ir.words import few
from partitioner.planner.feasible import enough, nowhere, remedy, what_is_held

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
        room = sum(problem.caps[number] for number in devices)
        if sum(demands) > room * (1 + 1e-12):
            raise PlacementError(_too_much(problem, sorted(devices), demands, room))


def _bound_to(problem: Problem) -> dict[frozenset[int], list[float]]:
    """What groups need, by the devices that can have them."""
    found: defaultdict[tuple[int, ...], list[float]] = defaultdict(list)
    if lost := [group for group, able in problem.able.items() if not able]:
        raise PlacementError(nowhere(problem, max(lost, key=problem.demand.__getitem__)))
    for group, able in problem.able.items():
        if problem.demand[group]:
            found[tuple(able)].append(problem.demand[group])
    return {frozenset(able): needs for able, needs in found.items()}


def _too_much(problem: Problem, devices: list[int], demands: list[float], room: float) -> str:
    names = [problem.processors[number].name for number in devices]
    shown = few(names, 4)
    bound = "" if len(devices) == len(problem.processors) else " that can run nowhere else"
    hold = f"hold {format_size(room)} together" if len(names) > 1 else f"holds {format_size(room)}"
    need = format_size(sum(demands)) + (f" of {what_is_held(problem)}" if problem.labels else "")
    advice = remedy(problem) if problem.labels else enough(problem).strip()
    return "\n".join(filter(None, [f"memory cannot suffice: tasks{bound} need {need}, and {shown} {hold}.", advice]))
