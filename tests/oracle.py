"""Is a lowered program right? Worked out the slow way, from the ops, and without any analysis of the package.

`judge` runs a program symbolically in issue order, as memory would see it: a value refers to buffers, an op makes, reads and
writes buffers, a Copy makes new ones. What comes out must be what the ops compute in the order of the graph. And nothing that
touches one buffer may be left to chance: every such pair, each against each, must be ordered by lanes and events.

It differs from `partitioner.lower.verify` wherever it can: it follows buffers through the ops and not the resources that a Run
names; it closes happens-before over sets and not clocks; and it looks at all pairs and not at those that imply the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from partitioner.ir.access import ANY, RNG
from partitioner.ir.graph import Graph, Op
from partitioner.ir.program import Copy, Free, Program, Record, Run, Wait
from partitioner.ir.task import TaskGraph

_terms: dict[object, int] = {}


def term(*parts: object) -> int:
    """A number that stands for a computation: the same parts, the same number."""
    return _terms.setdefault(parts, len(_terms))


@dataclass(eq=False)
class Buffer:
    """A piece of memory, compared by identity; ``lane`` allocated it, if the program did."""

    content: int
    device: str = ""
    lane: int | None = None


@dataclass(frozen=True, eq=False)
class Reference:
    """What a name refers to: how it was made, and its buffers by the storage that each one stands for."""

    form: int
    buffers: Mapping[str, Buffer]

    def now(self) -> int:
        """The value, as it is now."""
        return term(self.form, *((name, buffer.content) for name, buffer in sorted(self.buffers.items())))


@dataclass
class Touched:
    """What one instruction read and wrote; ``everything`` if it is not known."""

    reads: set[object] = field(default_factory=set)
    writes: set[object] = field(default_factory=set)
    everything: bool = False

    def conflicts(self, other: Touched) -> bool:
        """Whether the two must keep their order, the random generator left aside."""
        mine, theirs = (self.reads | self.writes) - {RNG}, (other.reads | other.writes) - {RNG}
        both = (mine & other.writes) | (self.writes & theirs)
        return self.everything or other.everything or bool(both - {RNG})


class Wrong(Exception):
    """Why a program is not right."""


class Memory:
    """All buffers, and the rules by which ops change them."""

    def __init__(self, inputs: Iterable[str]) -> None:
        self.state: dict[str, Buffer] = {}
        self.world, self.generator = Buffer(term("world")), Buffer(term("seed"))
        self.values = {name: Reference(term("input", name), {name: Buffer(term("data", name))}) for name in inputs}
        self.inputs = dict(self.values)

    def state_buffer(self, resource: str, device: str) -> Buffer:
        """The one buffer of a parameter, which lies where it is first used."""
        buffer = self.state.setdefault(resource, Buffer(term("state", resource), device))
        if buffer.device != device:
            raise Wrong(f"{resource} is used on {buffer.device} and on {device}")
        return buffer

    def execute(self, op: Op, local: dict[str, Reference], device: str, lane: int, touched: Touched) -> None:
        """One op: its result goes to ``local``, what it reads and writes to ``touched``."""
        sources = [local[name] for name in op.inputs]
        found: defaultdict[str, list[Buffer]] = defaultdict(list)
        for source in sources:
            for storage, buffer in source.buffers.items():
                found[storage].append(buffer)
        written = {access.resource for access in op.accesses if access.write}
        for access in op.accesses:
            if access.resource.startswith("self.") and access.resource not in found:
                found[access.resource] = [self.state_buffer(access.resource, device)]
        if RNG in written:
            found[RNG] = [self.generator]
        if ANY in written:
            found[ANY], touched.everything = [self.world], True
        seen = [buffer.content for name in sorted(found) for buffer in found[name][:1]]
        result = term(op.name, *(source.now() for source in sources), *seen)
        for resource, buffers in found.items():
            kind = touched.writes if resource in written else touched.reads
            kind.update([RNG] if resource == RNG else [] if resource == ANY else buffers)
            for buffer in buffers if resource in written else ():
                buffer.content = term("write", resource, result)
        made = {storage: found[storage][0] for storage in op.storages if found.get(storage)}
        if op.name in op.storages:
            made[op.name] = Buffer(term("new", op.name, result), device, lane)
            touched.writes.add(made[op.name])
        local[op.name] = Reference(term("form", op.name) if op.tensor else result, made)

    def meaning(self, outputs: Iterable[str]) -> dict[str, int]:
        """All that a caller can see when everything is done."""
        seen = {f"output {name}": self.values[name].now() for name in outputs}
        seen |= {f"input {name}": value.now() for name, value in self.inputs.items()}
        seen |= {f"state {name}": buffer.content for name, buffer in self.state.items()}
        return {**seen, "generator": self.generator.content, "world": self.world.content}


def graph_meaning(graph: Graph) -> dict[str, int]:
    """What the ops compute in program order, in one memory."""
    memory = Memory(name for name, _ in graph.inputs)
    for op in graph.ops:
        memory.execute(op, memory.values, "", 0, Touched())
    return memory.meaning(graph.outputs)


def closure(program: Program, queue: Mapping[int, int] | None = None) -> list[set[int]]:
    """For each instruction, those that have ended when it starts: its lane's past, and the past of each event waited for.

    ``queue`` says which lanes share one FIFO, by lane number; each has its own if it is left out.
    """
    past: list[set[int]] = []
    last: dict[int, int] = {}
    recorded: dict[int, int] = {}
    for index, item in enumerate(program.instructions):
        lane = item.lane if queue is None else queue[item.lane]
        direct = {last[lane]} if lane in last else set()
        if isinstance(item, Wait) and item.event in recorded:
            direct.add(recorded[item.event])
        past.append(direct.union(*(past[before] for before in direct)))
        last[lane] = index
        if isinstance(item, Record):
            recorded.setdefault(item.event, index)
    return past


def judge(program: Program, tasks: TaskGraph) -> str | None:
    """Why the program is wrong, or ``None`` if it is right on every machine and with every timing."""
    try:
        _Judge(program, tasks).judge()
    except Wrong as wrong:
        return str(wrong)
    return None


class _Judge:
    def __init__(self, program: Program, tasks: TaskGraph) -> None:
        self.program, self.tasks, self.items = program, tasks, program.instructions
        self.past = closure(program)
        # One thread issues all that accelerators do, and waits for CPU lanes. An op draws when it is issued.
        host = {number: number if lane.kind == "cpu" else -1 for number, lane in enumerate(program.lanes)}
        self.issued = closure(program, host)
        self.touched: dict[int, Touched] = {}
        self.memory = Memory(program.inputs)
        self.references = dict(self.memory.values)  # of freed values, too
        self.freed: dict[str, int] = {}
        for name in program.inputs:
            for buffer in self.memory.values[name].buffers.values():
                buffer.device = program.by_name[name].torch_device

    def judge(self) -> None:
        self._events()
        for index, item in enumerate(self.items):
            self._step(index, item)
        self._result()
        for one, other in combinations(self.touched, 2):
            self._pair(one, other)
        for name, index in self.freed.items():
            self._free_is_safe(name, index)
        self._boundary()

    def _events(self) -> None:
        recorded: set[int] = set()
        for item in self.items:
            if isinstance(item, Record):
                if item.event in recorded:
                    raise Wrong(f"e{item.event} is recorded twice")
                recorded.add(item.event)
            elif isinstance(item, Wait) and item.event not in recorded:
                raise Wrong(f"a lane waits for e{item.event}, which nothing before it records")

    def _step(self, index: int, item: object) -> None:
        if isinstance(item, Run):
            self.touched[index] = touched = Touched()
            self._run(item, touched)
        elif isinstance(item, Copy):
            self.touched[index] = touched = Touched()
            self._copy(item, touched)
        elif isinstance(item, Free):
            if item.value in (*self.program.inputs, *self.program.outputs) or item.value not in self.memory.values:
                raise Wrong(f"{item.value} cannot be freed")
            del self.memory.values[item.value]
            self.freed[item.value] = index

    def _read(self, name: str, touched: Touched) -> Reference:
        if name not in self.memory.values:
            raise Wrong(f"{name} is not there")
        touched.reads.add(name)
        value = self.memory.values[name]
        touched.reads.update(value.buffers.values())
        return value

    def _make(self, name: str, value: Reference, lane: int, touched: Touched) -> None:
        if name in self.references:
            raise Wrong(f"{name} is made twice")
        device = self.program.by_name[name].torch_device
        if device not in ("", self.program.lanes[lane].torch_device):
            raise Wrong(f"{name} is made on the wrong device")
        self.memory.values[name] = self.references[name] = value
        touched.writes.add(name)

    def _run(self, item: Run, touched: Touched) -> None:
        device = self.program.lanes[item.lane].torch_device
        local: dict[str, Reference] = {}
        for name in item.reads:
            value = local[name.partition("@")[0]] = self._read(name, touched)
            if any(buffer.device != device for buffer in value.buffers.values()):
                raise Wrong(f"{name} is read on {device}")
        for op in self.tasks.by_name[item.task].ops:
            known = self.tasks.graph.by_name[op]
            if any(name not in local for name in known.inputs):
                raise Wrong(f"{op} lacks an input")
            self.memory.execute(known, local, device, item.lane, touched)
        for name in item.writes:
            self._make(name, local[name], item.lane, touched)

    def _copy(self, item: Copy, touched: Touched) -> None:
        device = self.program.lanes[item.lane].torch_device
        source = self._read(item.source, touched)
        buffers = {name: Buffer(old.content, device, item.lane) for name, old in source.buffers.items()}
        touched.writes.update(buffers.values())
        self._make(item.target, Reference(source.form, buffers), item.lane, touched)

    def _result(self) -> None:
        if any(name not in self.memory.values for name in self.program.outputs):
            raise Wrong("an output is not made")
        got, wanted = self.memory.meaning(self.program.outputs), graph_meaning(self.tasks.graph)
        differing = [name for name in wanted if got.get(name) != wanted[name]]
        if differing:
            raise Wrong(f"another result: {', '.join(differing)}")

    def _pair(self, one: int, other: int) -> None:
        first, second = self.touched[one], self.touched[other]
        drawing = RNG in first.writes and RNG in second.writes
        if (first.conflicts(second) and one not in self.past[other]) or (drawing and one not in self.issued[other]):
            raise Wrong(f"{one} and {other} race")

    def _free_is_safe(self, name: str, index: int) -> None:
        """All users have ended when the memory can be used again: at once on a CPU, by the lane that made it otherwise."""
        buffers = self.references[name].buffers.values()
        mine = {name, *buffers}
        users = {user for user, touched in self.touched.items() if (touched.reads | touched.writes) & mine}
        reusing = {index}
        for buffer in buffers:
            if buffer.device != "cpu" and buffer.lane is not None:
                following = (at for at in self.touched if at > index and self.items[at].lane == buffer.lane)
                reusing.update(at for at in [next(following, None)] if at is not None)
        if any(user > index for user in users) or any(not users <= self.past[at] for at in reusing):
            raise Wrong(f"{name} is freed while it is in use")

    def _boundary(self) -> None:
        lane_zero = {index for index, item in enumerate(self.items) if item.lane == 0}
        end = set().union(*(self.past[index] | {index} for index in lane_zero))
        for index in [*self.touched, *self.freed.values()]:
            if self.items[index].lane != 0 and not self.past[index] & lane_zero:
                raise Wrong(f"{index} may start before the program")
        if not set(self.touched) <= end:
            raise Wrong("the program may end before its work is done")
        kept = {*self.program.inputs, *self.program.outputs, *self.freed}
        if any(value.name not in kept for value in self.program.values):
            raise Wrong("a value is never freed")
