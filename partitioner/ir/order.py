"""Happens-before over a program, written once: for the verifier, the frees, waits that tell nothing new, and what overlaps.

Vector clocks: the clock of an instruction says, for each lane, how many of that lane's instructions are known to have ended
when it starts. A lane knows its own past; a Wait adds what the Record knew.

    lane 0   run a . record e0 . run b            clock of run c: lane 0 -> 2, lane 1 -> 1
    lane 1             wait e0 . run c

Source: Mattern, "Virtual time and global states of distributed systems", 1989; Lamport, "Time, clocks, and the ordering of
events in a distributed system", 1978.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from partitioner.ir.program import Instruction, Program, Record, Run, Wait

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
    final: list[Clock] = [(0,) * len(program.lanes) for _ in program.lanes]
    clocks: list[Clock] = []
    ticks: list[int] = []
    for item, _, start, end in _replay(program, lambda item: True):
        clocks.append(start)
        ticks.append(end[item.lane])
        final[item.lane] = end
    return Order(program, tuple(clocks), tuple(ticks), tuple(final))


def overlaps(program: Program) -> bool:
    """Whether anything of a program may run at the same time: two Runs of different lanes with no order between them.

    Of another lane only the first Run that is not known to have ended can decide it: if that one waits for this one, so do
    all that come after it.
    """
    order = happens_before(program)
    runs: list[list[int]] = [[] for _ in program.lanes]
    for index, item in enumerate(program.instructions):
        if isinstance(item, Run):
            runs[item.lane].append(index)
    return any(_is_free_of(order, index, others) for mine in runs for index in mine for others in runs if others is not mine)


def _is_free_of(order: Order, index: int, others: list[int]) -> bool:
    """Whether a Run may run beside one of the Runs of another lane."""
    if not others:
        return False
    lane = order.program.instructions[others[0]].lane
    next_one = bisect_right(others, order.clocks[index][lane], key=order.ticks.__getitem__)
    return next_one < len(others) and not order.before(index, others[next_one])


def idle_waits(program: Program) -> frozenset[int]:
    """The Waits, by index, for work that their lane knows to be done already.

    Here a clock counts work only, for what a lane knows of events is of no use to it; and what the caller did before, which no
    other lane knows of until it waits for lane 0.
    """
    recorded: set[int] = set()
    found: set[int] = set()
    replay = _replay(program, lambda item: not isinstance(item, Record | Wait), past=1)
    for index, (item, before, start, _) in enumerate(replay):
        if isinstance(item, Record):
            recorded.add(item.event)
        elif isinstance(item, Wait) and item.event in recorded and start == before:
            found.add(index)
    return frozenset(found)


def _replay(
    program: Program, counts: Callable[[Instruction], bool], past: int = 0
) -> Iterator[tuple[Instruction, Clock, Clock, Clock]]:
    """Each instruction with the clock of its lane before it is issued, when it starts, and when it has ended.

    Args:
        program: what to replay.
        counts: which instructions a clock counts.
        past: what lane 0 has counted before.
    """
    now: list[Clock] = [(0,) * len(program.lanes) for _ in program.lanes]
    if now:
        now[0] = (past, *now[0][1:])
    events: dict[int, Clock] = {}
    for item in program.instructions:
        before = start = now[item.lane]
        if isinstance(item, Wait) and item.event in events:
            start = tuple(map(max, before, events[item.event]))
        end = now[item.lane] = (*start[: item.lane], start[item.lane] + counts(item), *start[item.lane + 1 :])
        if isinstance(item, Record):
            events.setdefault(item.event, end)
        yield item, before, start, end
