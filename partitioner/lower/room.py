"""Room for the values between tasks. Policies count the state that lies on a device; what its live values take is known of a
program only. Where both do not fit, the machine is asked for again with so much less memory:

    gpu0  80 GiB  state 80 GiB + 484 MiB live: too much        planned again as if it had 79.5 GiB

First each device leaves the room that the fullest needs, for tasks move when there is less; if then there is too little for the
state, only those leave room that were too full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic

from partitioner.errors import PlacementError, VerifyError
from partitioner.ir.footprint import footprints, least_cap, standing_bytes
from partitioner.ir.machine import Machine, capped, caps, with_less
from partitioner.ir.plan import Plan
from partitioner.ir.units import format_size
from partitioner.lower.verify import verify_plan

MOST_TRIES = 4

SECONDS, CLOSE = 10.0, 1e-2
"""Time for the way to the smallest peak, and the part of it that is not worth another step."""

PATIENCE, LARGEST = 3.0, 2**56
"""Seconds that looking for a cap that would do may take, and one under which everything fits."""

Bytes = Mapping[str, int]
"""By torch device."""

Maker = Callable[[Machine], Callable[[Machine], Plan]]
"""Gives, for a machine, what makes plans of it for the same with less memory."""


def with_room(machine: Machine, maker: Maker) -> Plan:
    """The first plan that keeps every rule, of those made for a machine and for the same with less memory.

    Args:
        machine: with the memory that there is.
        maker: what plans for a machine, and for the same with other caps.

    Raises:
        PlacementError: none fits. Names a cap for each device under which there is a plan, if one is found.
        VerifyError: a plan breaks another rule.
    """
    try:
        return _keeping(machine, maker(machine))
    except PlacementError as error:
        cap = _enough(machine, maker)
        if cap is None:
            raise
        raise PlacementError(f"{error}\nThere is a plan where each device has {cap} B ({format_size(cap)}).") from None


def _keeping(machine: Machine, make: Callable[[Machine], Plan]) -> Plan:
    first = make(machine)
    for grown in (_everywhere, _where_full):
        plan, room = first, dict.fromkeys(caps(machine), 0)
        for _ in range(MOST_TRIES):
            missing = live_bytes_too_many(plan)
            if not missing:
                verify_plan(plan)
                return plan
            room = grown(room, missing)
            try:
                plan = make(with_less(machine, room))
            except PlacementError:
                break
    verify_plan(first)
    return first


def with_least_peak(machine: Machine, maker: Maker) -> Plan:
    """Of the plans for a machine with less and less memory, the last that keeps its caps: the smallest peak, by bisection.

    Args, Raises: as for `with_room`. Plans hold what their ops take; without it the first stays.
    """
    best, make, until = with_room(machine, maker), maker(machine), monotonic() + SECONDS
    if best.memory is None:
        return best
    low, high = least_cap(best), peak_of(best)
    while high > low * (1 + CLOSE) and monotonic() < until:
        tried = (low + high) // 2
        found = _under(_at_most(machine, tried), lambda under: lambda smaller: replace(make(smaller), machine=under))
        if found is None:
            low = tried
        else:
            best, high = replace(found, machine=machine), peak_of(found)
    return best


def _under(machine: Machine, maker: Maker) -> Plan | None:
    """A plan that keeps the caps of a machine that differs in them alone; ``None`` if there was none."""
    try:
        return _keeping(machine, maker(machine))
    except (PlacementError, VerifyError):
        return None


def _enough(machine: Machine, maker: Maker) -> int | None:
    """The smallest cap that was found, by doubling and bisection, under which all devices that have one have a plan.

    What a refused plan takes is none: under other caps tasks go elsewhere, and take something else.
    """
    until, low = monotonic() + PATIENCE, max(caps(machine).values(), default=0)

    def fits(cap: int) -> bool:
        return _under(capped(machine, lambda each: None if each.memory is None else cap), maker) is not None

    if not low or not fits(LARGEST):
        return None
    high = low
    while high < LARGEST and not fits(high := 2 * high):
        low = high
    while high > low * (1 + CLOSE) and monotonic() < until:
        tried = (low + high) // 2
        low, high = (low, tried) if fits(tried) else (tried, high)
    return high


def peak_of(plan: Plan) -> int:
    """Bytes on the fullest device when it is fullest."""
    return max((each.total for each in footprints(plan).values()), default=0)


def live_bytes_too_many(plan: Plan) -> dict[str, int]:
    """Bytes at worst, on each device that is too full, beside those that policies reckon with."""
    state = standing_bytes(plan)
    totals = state | {device: each.total for device, each in footprints(plan).items()}  # no shapes, no live bytes
    full = (device for device, cap in caps(plan.machine).items() if totals.get(device, 0) > cap)
    return {device: max(0, totals[device] - state.get(device, 0)) for device in full}


def _everywhere(room: Bytes, missing: Bytes) -> dict[str, int]:
    """As much on each device as the fullest of them needs, and more each time."""
    most = max(missing.values())
    return {device: max(most, before + most // 8) for device, before in room.items()}


def _where_full(room: Bytes, missing: Bytes) -> dict[str, int]:
    """As much on each device as it needed itself, and more each time."""
    return {device: max(missing.get(device, 0), before + missing.get(device, 0) // 8) for device, before in room.items()}


def _at_most(machine: Machine, cap: int) -> Machine:
    return capped(machine, lambda each: cap if each.memory is None else min(cap, each.memory))
