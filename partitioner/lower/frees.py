"""A value is given up where its home lane knows that every reader is done."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace

from partitioner.ir.conflicts import allocators, free_lanes, storage_users
from partitioner.ir.order import happens_before
from partitioner.ir.program import Free, Instruction, Program


def insert_frees(program: Program) -> Program:
    """Give every value up at the first point at which a lane that may free it knows that all of its readers are done.

    Memory goes back to the lane that allocated it, so on an accelerator that lane must know; it is never made to wait for
    that. What no lane learns in time is freed at the end, on lane 0, which has waited for everybody.
    """
    spots = _Spots(program)
    users, makers = storage_users(program), allocators(program)
    placed: defaultdict[int, list[Free]] = defaultdict(list)
    last = len(program.instructions)
    kept = {*program.outputs, *program.inputs}
    for value in program.values:
        if value.name not in kept:
            found = (spots.first(lane, users[value.name]) for lane in free_lanes(program, value, makers))
            index, lane = min(found, default=(last, 0))
            placed[index].append(Free(0 if index == last else lane, value.name))
    result: list[Instruction] = []
    for index, item in enumerate(program.instructions):
        result.append(item)
        result += placed[index]
    return replace(program, instructions=(*result, *placed[last]))


class _Spots:
    """Finds, on a lane, the first point that comes after given instructions. Clocks of a lane only grow: binary search."""

    def __init__(self, program: Program) -> None:
        self.program, self.order = program, happens_before(program)
        self.on_lane: list[list[int]] = [[] for _ in program.lanes]
        for index, item in enumerate(program.instructions):
            self.on_lane[item.lane].append(index)

    def first(self, lane: int, users: list[int]) -> tuple[int, int]:
        """``(index, lane)`` of the first instruction of ``lane`` after which all ``users`` are known to be done."""
        need = [0] * len(self.program.lanes)
        for user in users:
            home = self.program.instructions[user].lane
            need[home] = max(need[home], self.order.ticks[user])

        def known(index: int) -> bool:
            clock, tick = self.order.clocks[index], self.order.ticks[index]
            return all((tick if other == lane else clock[other]) >= need[other] for other in range(len(need)))

        indices = self.on_lane[lane]
        spot = bisect_left(indices, True, key=known)
        return (indices[spot], lane) if spot < len(indices) else (len(self.program.instructions), lane)
