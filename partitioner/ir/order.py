"""Happens-before over a program, written once for the verifier, the simulator and the pruning of waits.

Vector clocks: the clock of an instruction says, for each lane, how many of that lane's instructions are known to have ended
when it starts. A lane knows its own past; a Wait adds what the Record knew.

    lane 0   run a . record e0 . run b            clock of run c: lane 0 -> 2, lane 1 -> 1
    lane 1             wait e0 . run c

Source: Mattern, "Virtual time and global states of distributed systems", 1989; Lamport, "Time, clocks, and the ordering of
events in a distributed system", 1978.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitioner.ir.program import Instruction, Program, Record, Wait

Clock = tuple[int, ...]


@dataclass(frozen=True)
class Order:
    """When each instruction starts, in terms of the others.

    Args:
        clocks: clock of each instruction of the program, by index.
        ticks: position of each instruction on its own lane, from 1.
        final: clock of each lane when the program has been issued.
    """

    program: Program
    clocks: tuple[Clock, ...]
    ticks: tuple[int, ...]
    final: tuple[Clock, ...]

    def before(self, first: int, second: int) -> bool:
        """Whether instruction ``first`` has ended whenever instruction ``second`` starts."""
        lane = self.program.instructions[first].lane
        return self.clocks[second][lane] >= self.ticks[first]

    def known_to(self, lane: int, first: int) -> bool:
        """Whether ``first`` has ended once ``lane`` has finished the whole program."""
        return self.final[lane][self.program.instructions[first].lane] >= self.ticks[first]


def happens_before(program: Program) -> Order:
    """The order of a program's instructions. A Wait for an event that is not recorded before it orders nothing."""
    lanes = len(program.lanes)
    clocks, ticks, final = _replay(program.instructions, lanes)
    return Order(program, tuple(clocks), tuple(ticks), tuple(final))


def _replay(instructions: Sequence[Instruction], lanes: int) -> tuple[list[Clock], list[int], list[Clock]]:
    now: list[Clock] = [(0,) * lanes for _ in range(lanes)]
    events: dict[int, Clock] = {}
    clocks: list[Clock] = []
    ticks: list[int] = []
    for instruction in instructions:
        lane = instruction.lane
        clock = now[lane]
        if isinstance(instruction, Wait) and instruction.event in events:
            clock = tuple(map(max, clock, events[instruction.event]))
        clocks.append(clock)
        tick = clock[lane] + 1
        ticks.append(tick)
        now[lane] = (*clock[:lane], tick, *clock[lane + 1 :])
        if isinstance(instruction, Record):
            events.setdefault(instruction.event, now[lane])
    return clocks, ticks, now
