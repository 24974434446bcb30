"""What the throughput objective sees of a problem: units of tasks that share a processor, and what flows between them.

    tasks   a > b > c    units  {a, c}, which share a group, and {b}
            a > d               and {d}

A *flow* is all values that one unit makes and the same other units read; it is priced as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from partitioner.errors import PlacementError
from partitioner.ir.problem import Problem
from partitioner.ir.words import few

Floats = NDArray[np.float64]

MOST_NEAR = 64
"""Neighbours of a unit that are remembered."""


@dataclass(frozen=True)
class Flow:
    """What goes from one unit to others: ``count`` values of together ``size`` bytes."""

    maker: int
    readers: tuple[int, ...]
    count: int
    size: float


@dataclass(frozen=True, eq=False)
class Reach:
    """Forward tasks as bits, for each unit: its own, those that it leads to and those that lead to it."""

    own: Sequence[int]
    after: Sequence[int]
    before: Sequence[int]

    def of(self, units: Iterable[int]) -> tuple[int, int, int]:
        """Of some units together: their own, those that they lead to and those that lead to them."""
        own = after = before = 0
        owns, afters, befores = self.own, self.after, self.before
        for unit in units:
            own |= owns[unit]
            after |= afters[unit]
            before |= befores[unit]
        return own, after, before

    def between(self, units: Iterable[int]) -> int:
        """Those on paths that leave the units and come back."""
        own, after, before = self.of(units)
        return after & before & ~own

    def joined(self, joint: Sequence[int]) -> Reach:
        """Of coarser units: ``joint[unit]`` is the one that a unit is part of."""
        found = [[0] * (max(joint) + 1) for _ in range(3)]
        for bits, wider in zip((self.own, self.after, self.before), found, strict=True):
            for unit, each in enumerate(joint):
                wider[each] |= bits[unit]
        return Reach(*found)


@dataclass(frozen=True, eq=False)
class Units:
    """A problem for the throughput objective, unit by unit.

    Args:
        problem: the whole question.
        contiguous: whether a processor's forward tasks must be convex.
        unit_of: the unit of each task. Units are numbered by their first task.
        reach: who leads to whom; ``None`` where contiguity is not asked for, or there are too many tasks.
    """

    problem: Problem
    contiguous: bool
    unit_of: Sequence[int]
    reach: Reach | None = None

    @cached_property
    def members(self) -> list[list[int]]:
        """The tasks of each unit."""
        found: list[list[int]] = [[] for _ in range(max(self.unit_of, default=-1) + 1)]
        for task, unit in enumerate(self.unit_of):
            found[unit].append(task)
        return found

    @property
    def count(self) -> int:
        """How many units there are."""
        return len(self.members)

    def _summed(self, table: Sequence[float]) -> Floats:
        """What each unit's tasks have together."""
        return np.bincount(self.unit_of, np.asarray(table, dtype=float), self.count).astype(np.float64)

    @cached_property
    def memory(self) -> Floats:
        """Bytes of each unit."""
        held = self.problem.memory or [0.0] * len(self.unit_of)
        return self._summed(held)

    @cached_property
    def seconds(self) -> Floats:
        """Seconds of each unit on each processor, for one of its lanes among all; infinite where it may not go."""
        problem, pins = self.problem, self.pins
        tables: dict[int, Floats] = {}
        found = np.empty((len(problem.processors), self.count))
        for number, each in enumerate(problem.processors):
            table = problem.seconds[number]
            if id(table) not in tables:
                tables[id(table)] = self._summed(table)
            found[number] = tables[id(table)] / each.lanes
            found[number, self.memory > problem.caps[number]] = inf
        for unit, pinned in pins.items():
            kept = found[pinned, unit] if pinned >= 0 else inf
            found[:, unit] = inf
            found[pinned, unit] = kept
        return found

    @cached_property
    def pins(self) -> dict[int, int]:
        """The processor of each pinned unit; -1 where two pins disagree."""
        found: dict[int, int] = {}
        for group, pinned in self.problem.pin.items():
            for unit in {self.unit_of[task] for task in self.problem.members.get(group, ())}:
                found[unit] = pinned if found.get(unit, pinned) == pinned else -1
        return found

    @cached_property
    def able(self) -> list[list[int]]:
        """The processors that each unit may go to.

        Raises:
            PlacementError: a unit can run nowhere.
        """
        finite = np.isfinite(self.seconds)
        if not finite.any(axis=0).all():
            raise PlacementError(self._nowhere(int(np.argmin(finite.any(axis=0)))))
        known: dict[bytes, list[int]] = {}
        for unit, key in enumerate(keys := [column.tobytes() for column in np.packbits(finite, axis=0).T]):
            if key not in known:
                known[key] = np.flatnonzero(finite[:, unit]).tolist()
        return [known[key] for key in keys]

    @cached_property
    def able_sets(self) -> list[frozenset[int]]:
        """`able` as sets; units with the same one share it."""
        known: dict[int, frozenset[int]] = {}
        return [known.setdefault(id(each), frozenset(each)) if id(each) not in known else known[id(each)] for each in self.able]

    def _nowhere(self, unit: int) -> str:
        names = [self.problem.tasks[task] for task in self.members[unit]]
        shown = few(names, 4)
        why = ", or lie between such tasks and no path may leave a device and come back" if self.problem.contiguous else ""
        advice = ", or leave contiguity out" if why and not self.problem.labels else ""  # stages of a model cannot do without
        asked = f"they must share a device{why}" if len(names) > 1 else "it is one task"
        return (
            f"{shown} can run nowhere together ({asked}): no device can run all of them, has {self.memory[unit]:.0f} bytes for "
            f"them and agrees with every pin. Raise a memory cap, remove a pin or a colocation{advice}."
        )

    @cached_property
    def flows(self) -> list[Flow]:
        """What passes between units; values with the same maker and readers are one."""
        found: defaultdict[tuple[int, tuple[int, ...]], list[float]] = defaultdict(list)
        for (task, size), tasks in zip(self.problem.values, self.problem.readers, strict=True):
            maker = self.unit_of[task]
            if readers := {self.unit_of[each] for each in tasks} - {maker}:
                found[maker, tuple(sorted(readers))].append(size)
        return [Flow(maker, readers, len(sizes), sum(sizes)) for (maker, readers), sizes in found.items()]

    @cached_property
    def touching(self) -> list[list[int]]:
        """The numbers of the flows that each unit makes or reads."""
        found: list[list[int]] = [[] for _ in range(self.count)]
        for number, flow in enumerate(self.flows):
            for unit in (flow.maker, *flow.readers):
                found[unit].append(number)
        return found

    @cached_property
    def near(self) -> list[list[int]]:
        """The units that each one exchanges something with, most first; of very many, the first ones."""
        sizes: list[defaultdict[int, float]] = [defaultdict(float) for _ in range(self.count)]
        for flow in self.flows:
            for reader in flow.readers:
                sizes[flow.maker][reader] += flow.size
                sizes[reader][flow.maker] += flow.size
        return [sorted(each, key=lambda unit: (-each[unit], unit))[:MOST_NEAR] for each in sizes]

    @cached_property
    def after(self) -> list[set[int]]:
        """The units that follow each unit, over forward tasks only."""
        found: list[set[int]] = [set() for _ in range(self.count)]
        backward = self.problem.backward
        for source, target, _ in self.problem.edges:
            if source not in backward and target not in backward and self.unit_of[source] != self.unit_of[target]:
                found[self.unit_of[source]].add(self.unit_of[target])
        return found

    @cached_property
    def before(self) -> list[set[int]]:
        """The units that lead to each unit, over forward tasks only."""
        found: list[set[int]] = [set() for _ in range(self.count)]
        for unit, followers in enumerate(self.after):
            for follower in followers:
                found[follower].add(unit)
        return found

    @cached_property
    def rows(self) -> list[list[float]]:
        """``seconds`` as lists; processors on which all units take as long have the same one."""
        known: dict[bytes, list[float]] = {}
        for row in self.seconds:
            if (key := row.tobytes()) not in known:
                known[key] = row.tolist()
        return [known[row.tobytes()] for row in self.seconds]

    def joined(self, label: Sequence[int]) -> Units:
        """Coarser units: those with the same label are one."""
        number = {each: place for place, each in enumerate(dict.fromkeys(label[unit] for unit in self.unit_of))}
        joint = [number[each] for each in label]
        return Units(
            self.problem, self.contiguous, [joint[unit] for unit in self.unit_of], self.reach and self.reach.joined(joint)
        )

    def spread_over(self, homes: Sequence[int]) -> list[int]:
        """The processor of each task, from that of each unit."""
        return [homes[unit] for unit in self.unit_of]

    def of_tasks(self, homes: Sequence[int]) -> list[int]:
        """The processor of each unit, from that of each task: its first one's."""
        return [homes[tasks[0]] for tasks in self.members]

    def valid(self, homes: Sequence[int]) -> bool:
        """Whether units on these processors respect pins, memory and contiguity."""
        used = np.bincount(homes, self.memory, len(self.problem.processors))
        if (used > self.problem.caps).any():
            return False
        if not np.isfinite(self.seconds[list(homes), range(self.count)]).all():
            return False
        if not self.contiguous or self.reach is None:
            return True
        sets: defaultdict[int, list[int]] = defaultdict(list)
        for unit, home in enumerate(homes):
            sets[home].append(unit)
        return not any(map(self.reach.between, sets.values()))
