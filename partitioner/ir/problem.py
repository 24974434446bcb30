"""What a policy is asked: tasks, values, processors and the ways between them, as numbers. No torch, no names but for people.

    problem two_towers: 4 tasks, 4 edges, 3 values on 2 processors; latency
      t0  cpu 0.80 ms
      t1  cpu 0.75 ms  <- t0
      ...

A task is a number, 0 to n - 1, and every table is indexed by it. A problem is built from a graph (`planner/pose.py`) or read
from a file (`spec/taskgraph.py`), and answered by an `Assignment`.

*Processor*: a device as the planner sees it, with one or more lanes, each of which runs one task at a time.
*Channel*: what carries values and is busy meanwhile: a link, or one device's link to the host.
*Route*: the channels that a value takes from one processor to another, in order; an empty route costs nothing.

A value that has gone over a channel is on its other side for everybody: several tasks of one processor, or several processors
behind one host link, cost one passage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Literal

import networkx as nx

Objective = Literal["latency", "throughput", "memory"]

ROUNDING = 1e-10
"""Part of a processor's memory by which sums of fractions may exceed it: 0.1 + 0.2 is more than 0.3 to a computer."""

ORDER, ISSUE = -1, -2
"""In the place of a value: an edge over which nothing passes; one that, on accelerators, orders only what the host issues."""


@dataclass(frozen=True)
class Kind:
    """How long each task takes on the processors of one kind.

    Args:
        name: what reports call it: ``cpu``, ``cuda``, ``fpga``.
        seconds: by number of threads, the seconds of each task; infinite where it cannot run. At least one entry.
        issue: seconds for which each task keeps the issuing thread busy; ``None`` where a lane issues for itself.
        share: part of a processor's multiprocessors that each task fills; ``None`` where threads are what is shared.
    """

    name: str
    seconds: Mapping[int, Sequence[float]]
    issue: Sequence[float] | None = None
    share: Sequence[float] | None = None


@dataclass(frozen=True)
class Processor:
    """A device as the planner sees it.

    Args:
        name: the device's.
        kind: number of its kind.
        lanes: tasks that run on it at once.
        memory: bytes that tasks may hold together; infinite for no cap.
        cores: threads of all lanes together; 1 where a lane is all there is.
        handoff: seconds from the end of a task on one lane to the start of one that waits for it on another lane.
    """

    name: str
    kind: int
    lanes: int = 1
    memory: float = inf
    cores: int = 1
    handoff: float = 0.0

    @property
    def threads_per_lane(self) -> int:
        """Threads that a task may use while every lane is busy."""
        return max(1, self.cores // self.lanes)


@dataclass(frozen=True)
class Channel:
    """What carries one value at a time: ``bandwidth`` in bytes/s, ``latency`` in seconds.

    ``ends`` are the processors that take part: two of a link, one of a link to the host.
    """

    name: str
    bandwidth: float
    latency: float
    ends: tuple[int, ...]

    def seconds(self, size: float) -> float:
        """Seconds for which ``size`` bytes hold it."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True, eq=False)
class Problem:
    """The whole question.

    Args:
        name: of the model or file.
        tasks: their names, in an order in which they may run.
        kinds: seconds of every task on each kind of processor.
        processors: where tasks can run.
        channels: what carries values.
        routes: by two different processors' numbers, the channels from the first to the second; none: it costs nothing.
        edges: ``(source task, target task, value)``; the value's number, or ``ORDER`` or ``ISSUE``.
        values: ``(task that makes it, bytes)`` of each value.
        memory: bytes that each task holds on its processor for good; empty for none.
        group: a number for each task; tasks of one group share a processor. Empty: each is free.
        pin: by group (by task where there are no groups) the number of the processor that it must have.
        labels: what each task does, for people and policies that look at it: the names of its ops. Empty: nobody said.
        backward: tasks of a backward pass, which `contiguous` leaves out.
        objective: ``latency``: when the last task ends. ``throughput``: the largest load of a processor. ``memory``: the most
            bytes that one holds.
        contiguous: no path of tasks leaves a processor and comes back.
        overlap: whether a processor computes while it sends or receives.
        fetched: a passage keeps the lane busy that reads its value first, as a Copy of a program does; its maker's goes on.
        given: ``(bytes, tasks that read it)`` of each value that is there before the first task, such as an argument of a
            call: it lies where it is first read, and travels from there.
    """

    name: str
    tasks: tuple[str, ...]
    kinds: tuple[Kind, ...]
    processors: tuple[Processor, ...]
    edges: Sequence[tuple[int, int, int]]
    values: Sequence[tuple[int, float]] = ()
    channels: tuple[Channel, ...] = ()
    routes: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    memory: Sequence[float] = ()
    group: Sequence[int] = ()
    pin: Mapping[int, int] = field(default_factory=dict)
    labels: Sequence[str] = ()
    backward: frozenset[int] = frozenset()
    objective: Objective = "latency"
    contiguous: bool = False
    overlap: bool = True
    fetched: bool = False
    given: Sequence[tuple[float, Sequence[int]]] = ()

    # Who comes before whom --------------------------------------------------------------------------------------------

    @cached_property
    def before(self) -> list[list[tuple[int, int]]]:
        """``(source, value)`` of each edge into each task."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.tasks]
        for source, target, value in self.edges:
            found[target].append((source, value))
        return found

    @cached_property
    def after(self) -> list[list[int]]:
        """The tasks that follow each task, one mention for each edge."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for source, target, _ in self.edges:
            found[source].append(target)
        return found

    @cached_property
    def dag(self) -> nx.DiGraph[int]:
        """Tasks by number; what does not count edges or read them by the million may ask networkx."""
        dag: nx.DiGraph[int] = nx.DiGraph(name=self.name)
        dag.add_nodes_from(range(len(self.tasks)))
        dag.add_edges_from((source, target) for source, target, _ in self.edges)
        return dag

    @cached_property
    def readers(self) -> list[list[int]]:
        """The tasks that read each value."""
        found: list[list[int]] = [[] for _ in self.values]
        for _, target, value in self.edges:
            if value >= 0:
                found[value].append(target)
        return found

    @cached_property
    def made(self) -> list[list[int]]:
        """The values that each task makes."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for value, (maker, _) in enumerate(self.values):
            found[maker].append(value)
        return found

    @cached_property
    def given_to(self) -> dict[int, list[int]]:
        """The numbers of the given values that each task reads, by task; tasks that read none are left out."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for number, (_, readers) in enumerate(self.given):
            for task in readers:
                found[task].append(number)
        return dict(found)

    # Lanes ------------------------------------------------------------------------------------------------------------

    @cached_property
    def lanes(self) -> tuple[int, ...]:
        """The processor of each lane, processor by processor."""
        return tuple(number for number, each in enumerate(self.processors) for _ in range(each.lanes))

    @cached_property
    def first_lane(self) -> tuple[int, ...]:
        """The first lane of each processor."""
        found = [0]
        for each in self.processors:
            found.append(found[-1] + each.lanes)
        return tuple(found[:-1])

    @property
    def back(self) -> float:
        """Seconds from the end of a task on another lane until the first lane, which is the caller's, knows of it."""
        return self.processors[self.lanes[0]].handoff if self.lanes else 0.0

    # Costs ------------------------------------------------------------------------------------------------------------

    def seconds_of(self, processor: int, threads: int | None = None) -> Sequence[float]:
        """Seconds of each task on a lane of ``processor``, with a lane's share of its threads or with ``threads``."""
        each = self.processors[processor]
        table = self.kinds[each.kind].seconds
        wanted = each.threads_per_lane if threads is None else threads
        return table[max((width for width in table if width <= wanted), default=min(table))]

    @cached_property
    def seconds(self) -> list[Sequence[float]]:
        """Seconds of each task on a lane of each processor, with that lane's share of its threads."""
        return [self.seconds_of(number) for number in range(len(self.processors))]

    @cached_property
    def alike(self) -> bool:
        """Whether a task takes the same on every processor, as far as tables say so."""
        return len(set(map(id, self.seconds))) == 1

    @property
    def waits(self) -> bool:
        """Whether processors would stand still while they send and receive."""
        return not self.overlap and not self.fetched

    @cached_property
    def stands(self) -> bool:
        """Whether they do, for there are values that travel between them."""
        return self.waits and self.travels

    @cached_property
    def travels(self) -> bool:
        """Whether there are values, and channels over which they may have to pass."""
        return bool(self.values) and any(self.routes.values())

    # Groups -----------------------------------------------------------------------------------------------------------

    @cached_property
    def group_of(self) -> Sequence[int]:
        """The group of each task; its own number where nobody gave one."""
        return self.group or range(len(self.tasks))

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The tasks of each group."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for task, group in enumerate(self.group_of):
            found[group].append(task)
        return dict(found)

    @cached_property
    def demand(self) -> dict[int, float]:
        """Bytes that each group holds."""
        if not self.memory:
            return dict.fromkeys(self.members, 0.0)
        return {group: sum(self.memory[task] for task in tasks) for group, tasks in self.members.items()}

    @cached_property
    def caps(self) -> list[float]:
        """Bytes that each processor holds at most: its memory, and what the sum of demands in fractions may be off by."""
        slack = 0.0 if all(float(each).is_integer() for each in self.memory) else ROUNDING
        return [each.memory * (1 + slack) for each in self.processors]

    @cached_property
    def crowded(self) -> bool:
        """Whether some processor has not the memory for everything, so that where one group goes matters to others."""
        return sum(self.demand.values()) > min(self.caps)

    @cached_property
    def able(self) -> dict[int, list[int]]:
        """The processors that can run every task of each group, other groups left out. Lists are shared: not to be changed."""
        alike: defaultdict[tuple[int, float], list[int]] = defaultdict(list)
        for number, cap in enumerate(self.caps):
            alike[id(self.seconds[number]), cap].append(number)
        tables = {id(table): table for table in self.seconds}
        unable = {which: {task for task, each in enumerate(table) if each == inf} for which, table in tables.items()}
        classes = [(unable[which], memory, numbers) for (which, memory), numbers in alike.items()]
        known: dict[tuple[bool, ...], list[int]] = {}
        found: dict[int, list[int]] = {}
        for group, tasks in self.members.items():
            need = self.demand[group]
            key = tuple(need <= memory and lacking.isdisjoint(tasks) for lacking, memory, _ in classes)
            if key not in known:
                known[key] = sorted(each for (_, _, numbers), can in zip(classes, key, strict=True) if can for each in numbers)
            found[group] = known[key]
            if group in self.pin:
                found[group] = [self.pin[group]] if self.pin[group] in known[key] else []
        return found

    def __str__(self) -> str:
        counted = f"{len(self.tasks)} tasks, {len(self.edges)} edges, {len(self.values)} values"
        rules = ", contiguous" if self.contiguous else ""
        lines = [f"problem {self.name}: {counted} on {len(self.processors)} processors; {self.objective}{rules}"]
        for task, name in enumerate(self.tasks):
            times = (f"{kind.name} {kind.seconds[min(kind.seconds)][task] * 1e3:.3g} ms" for kind in self.kinds)
            sources = " ".join(dict.fromkeys(self.tasks[source] for source, _ in self.before[task]))
            lines.append(f"  {name}  {', '.join(times)}{f'  <- {sources}' if sources else ''}")
        return "\n".join(lines)
