"""Room for the values between tasks. Policies count the state that lies on a device; what its live values take is known of a
program only. Where both do not fit, the machine is asked for again with so much less memory:

    gpu0  80 GiB  state 80 GiB + 484 MiB live: too much        planned again as if it had 79.5 GiB
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from partitioner.errors import PlacementError
from partitioner.ir.liveness import peak_bytes
from partitioner.ir.machine import Machine, caps
from partitioner.ir.plan import Plan, resident_bytes
from partitioner.lower.verify import verify_plan

MOST_TRIES = 4


def with_room(machine: Machine, make: Callable[[Machine], Plan]) -> Plan:
    """The first plan of those made for a machine, each with less memory than the one before, that keeps every rule.

    Args:
        machine: with the memory that there is.
        make: plans for a machine, and gives a plan whose ``machine`` is the one above.

    Raises:
        PlacementError: none fits.
        VerifyError: a plan breaks another rule.
    """
    first = plan = make(machine)
    room = 0
    for _ in range(MOST_TRIES):
        missing = live_bytes_too_many(plan)
        if not missing:
            break
        room = max(missing, room + missing // 8)
        try:
            plan = make(_with_less(machine, room))
        except PlacementError:
            plan = first
            break
    verify_plan(plan)
    return plan


def live_bytes_too_many(plan: Plan) -> int:
    """Bytes of live values on the device that has most of them, if a device has too little memory; 0 if all have enough."""
    state, live = resident_bytes(plan), peak_bytes(plan.program)
    peaks = {name: live.get(name, (0, -1))[0] for name in caps(plan.machine)}
    full = any(state.get(name, 0) + peaks[name] > cap for name, cap in caps(plan.machine).items())
    return max(peaks.values()) if full else 0


def _with_less(machine: Machine, room: int) -> Machine:
    devices = (each if each.memory is None else replace(each, memory=max(0, each.memory - room)) for each in machine.devices)
    return replace(machine, devices=tuple(devices))
