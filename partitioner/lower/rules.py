"""The named rules that a program must keep.

A rule is a function from a `Case` to the faults it finds. Rules on a program alone need nothing else to be right; the rule
`graph` holds it against the graph that it was made from, and `capacity` against the memory of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from partitioner.ir.access import conflict, is_storage
from partitioner.ir.conflicts import allocators, conflicts, free_lanes, issued_in_order, stale_uses, storage_users
from partitioner.ir.footprint import Footprint
from partitioner.ir.liveness import peak_bytes
from partitioner.ir.order import Order, happens_before
from partitioner.ir.program import Copy, Free, Program, Record, Run, Wait, inputs_of, original, outputs_of
from partitioner.ir.task import TaskGraph
from partitioner.ir.units import format_size


@dataclass(frozen=True)
class Fault:
    """One broken rule: its name, what is wrong, and the instructions concerned, by index."""

    rule: str
    message: str
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """What is verified, with what the rules share.

    Args:
        program: the program.
        tasks: what it was made from, for the rule ``graph``.
        memory: cap in bytes by torch device; the rule ``capacity`` skips what is not there.
        resident: bytes of parameters and buffers by torch device.
        footprints: what is taken on each torch device at most, where that is known op by op; it counts then.
    """

    program: Program
    tasks: TaskGraph | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    resident: Mapping[str, int] = field(default_factory=dict)
    footprints: Mapping[str, Footprint] = field(default_factory=dict)

    @cached_property
    def order(self) -> Order:
        """Happens-before."""
        return happens_before(self.program)

    def lane(self, index: int) -> str:
        """Name of the lane of an instruction."""
        return self.program.lanes[self.program.instructions[index].lane].name

    def device(self, index: int) -> str:
        """Torch device of the lane of an instruction."""
        return self.program.lanes[self.program.instructions[index].lane].torch_device


Rule = Callable[[Case], Iterator[Fault]]


def undeclared(case: Case) -> Iterator[Fault]:
    """Every lane and every value that is copied is declared. Asked first: what is not, no other rule can speak about."""
    for index, item in enumerate(case.program.instructions):
        if not 0 <= item.lane < len(case.program.lanes):
            text = f"instruction {index} is on lane {item.lane}, which is not declared: {item}"
            yield Fault("declaration", text, (index,))
        for name in (item.source, item.target) if isinstance(item, Copy) else ():
            if name not in case.program.by_name:
                yield Fault("declaration", f"instruction {index} copies {name}, which is not declared: {item}", (index,))


def race(case: Case) -> Iterator[Fault]:
    """Two instructions that conflict are ordered."""
    items = case.program.instructions
    for earlier, later in conflicts(case.program):
        one, other = items[earlier], items[later]
        if one.lane == other.lane:
            continue
        if not case.order.before(earlier, later) and not issued_in_order(case.program, earlier, later):
            what = conflict(case.program.accesses(one), case.program.accesses(other))
            unordered = f"no event orders {case.lane(earlier)} before {case.lane(later)}"
            yield Fault("race", f"instructions {earlier} and {later} both touch {what}, and {unordered}", (earlier, later))


def deadlock(case: Case) -> Iterator[Fault]:
    """Every event is recorded once, and before anybody waits for it."""
    recorded: dict[int, int] = {}
    for index, item in enumerate(case.program.instructions):
        if isinstance(item, Record):
            if item.event in recorded:
                yield Fault("deadlock", f"event e{item.event} is recorded twice", (recorded[item.event], index))
            recorded.setdefault(item.event, index)
        elif isinstance(item, Wait) and item.event not in recorded:
            yield Fault("deadlock", f"{case.lane(index)} waits for e{item.event}, which nothing before it records", (index,))


def boundary(case: Case) -> Iterator[Fault]:
    """The program begins and ends on lane 0: every lane starts after it was entered and is joined before it is left."""
    begun: set[int] = set()
    items = case.program.instructions
    entry = next((i for i, item in enumerate(items) if isinstance(item, Record) and item.lane == 0), None)
    for index, item in enumerate(items):
        if isinstance(item, Wait) or item.lane in begun or item.lane == 0:
            continue
        begun.add(item.lane)
        if entry is None or not case.order.before(entry, index):
            yield Fault("boundary", f"{case.lane(index)} starts without waiting for the caller", (index,))
    for index, item in enumerate(items):
        if isinstance(item, Run | Copy) and not case.order.known_to(0, index):
            yield Fault(
                "boundary",
                f"the program ends before instruction {index} on {case.lane(index)} is known to be done",
                (index,),
            )


def device(case: Case) -> Iterator[Fault]:
    """Every value and every storage, parameters included, is used on one device; only a Copy reads from another."""
    values = case.program.by_name
    home: dict[str, int] = {}
    for index, item in enumerate(case.program.instructions):
        here = case.device(index)
        for name in (*item.reads, *item.writes) if isinstance(item, Run) else outputs_of(item):
            if name in values and values[name].torch_device not in ("", here):
                yield Fault(
                    "device", f"{name} lies on {values[name].torch_device}, and {case.lane(index)} is on {here}", (index,)
                )
        for access in item.touches if isinstance(item, Run) else ():
            first = home.setdefault(access.resource, index)
            if is_storage(access.resource) and case.device(first) != here:
                there = f"on {case.device(first)} and on {here}"
                yield Fault("device", f"{access.resource} is used {there}", (first, index))


def stale(case: Case) -> Iterator[Fault]:
    """No copy is used after its source was written: it would lack the write."""
    for copied, written, used in stale_uses(case.program):
        target = case.program.instructions[copied]
        assert isinstance(target, Copy)
        yield Fault("stale", f"{target.target} is used after {target.source} was written", (copied, written, used))


def definition(case: Case) -> Iterator[Fault]:
    """Every value is declared, and made once, before it is read; every output is made."""
    origin: dict[str, int] = dict.fromkeys(case.program.inputs, -1)
    for index, item in enumerate(case.program.instructions):
        for name in inputs_of(item):
            if name not in origin:
                yield Fault("definition", f"{name} is read before it is made", (index,))
        for name in outputs_of(item):
            if name in origin:
                yield Fault("definition", f"{name} is made twice", (index,))
            if name not in case.program.by_name:
                yield Fault("definition", f"{name} is not declared", (index,))
            origin[name] = index
    for name in case.program.outputs:
        if name not in origin:
            yield Fault("definition", f"output {name} is never made")


def use_after_free(case: Case) -> Iterator[Fault]:
    """A value is freed after everything that touches it or its storage has ended, as its freeing lane knows."""
    users = storage_users(case.program)
    for index, item in enumerate(case.program.instructions):
        if isinstance(item, Free):
            for user in users.get(item.value, ()):
                if user > index or not case.order.before(user, index):
                    message = f"{item.value} is freed on {case.lane(index)} while {case.lane(user)} may still use it"
                    yield Fault("use after free", message, (min(user, index), max(user, index)))


def freeing(case: Case) -> Iterator[Fault]:
    """Every value but inputs and outputs is freed, once, where its memory came from or when all is done."""
    kept = {*case.program.inputs, *case.program.outputs}
    makers = allocators(case.program)
    freed: dict[str, int] = {}
    end = max((i for i, item in enumerate(case.program.instructions) if not isinstance(item, Free)), default=-1)
    for index, item in enumerate(case.program.instructions):
        if not isinstance(item, Free):
            continue
        if item.value in freed:
            yield Fault("double free", f"{item.value} is freed twice", (freed[item.value], index))
        freed.setdefault(item.value, index)
        if item.value in kept or item.value not in case.program.by_name:
            yield Fault("double free", f"{item.value} is not the program's to free", (index,))
        elif index < end and item.lane not in free_lanes(case.program, case.program.by_name[item.value], makers):
            yield Fault("free on the wrong lane", f"{item.value} does not belong to {case.lane(index)}", (index,))
    for value in case.program.values:
        if value.name not in kept and value.name not in freed:
            yield Fault("leak", f"{value.name} ({format_size(value.bytes)}) is never freed")


def capacity(case: Case) -> Iterator[Fault]:
    """What stays and what lives for a while fit into each device's memory, in issue order."""
    peaks = peak_bytes(case.program)
    for name, cap in case.memory.items():
        state, (live, at) = case.resident.get(name, 0), peaks.get(name, (0, -1))
        if name in case.footprints:
            state, live = case.footprints[name].state, case.footprints[name].total - case.footprints[name].state
        if state + live > cap:
            needs = f"{format_size(state)} of state and {format_size(live)} of live values"
            yield Fault("capacity", f"{name} needs {needs}, and has {format_size(cap)}", (at,) if at >= 0 else ())


def graph(case: Case) -> Iterator[Fault]:
    """Each task runs exactly once, takes and gives what it should, and conflicting ops keep their program order."""
    if case.tasks is None:
        return
    seen: dict[str, int] = {}
    for index, item in enumerate(case.program.instructions):
        if isinstance(item, Run):
            task = case.tasks.by_name.get(item.task)
            if task is None or item.task in seen:
                yield Fault("graph", f"{item.task} is {'unknown' if task is None else 'run twice'}", (index,))
            elif tuple(original(name) for name in item.reads) != task.inputs or item.writes != task.outputs:
                yield Fault(
                    "graph",
                    f"{item.task} takes ({', '.join(task.inputs)}) and gives ({', '.join(task.outputs)})",
                    (index,),
                )
            seen.setdefault(item.task, index)
        elif isinstance(item, Copy) and original(item.source) != original(item.target):
            yield Fault("graph", f"{item.target} is no copy of {item.source}", (index,))
    missing = [task.name for task in case.tasks.tasks if task.name not in seen]
    if missing:
        yield Fault("graph", f"never run: {', '.join(missing)}")
    for before, after in case.tasks.edges:
        if before in seen and after in seen:
            first, second = seen[before], seen[after]
            if first > second:
                yield Fault("graph", f"{after} is issued before {before}, on which it depends", (second, first))
            elif (before, after) not in case.tasks.random_only and not case.order.before(first, second):
                yield Fault("graph", f"{after} depends on {before}, and no event orders them", (first, second))


RULES: tuple[Rule, ...] = (deadlock, definition, graph, device, stale, race, boundary, use_after_free, freeing, capacity)
