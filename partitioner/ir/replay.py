"""A program replayed, forward and backward, as changes of the memory that is taken on each device.

    conv          cuda:0  activations  +2.0 MiB  conv
    relu          cuda:0  saved        +2.0 MiB  relu
    backward relu cuda:0  backward     +2.0 MiB  relu
    ...

Forward goes in issue order, op by op. Backward is autograd's: ops in reverse, each as soon as the gradient of its result is
there; that gradient lives until then, and what an op saved until its backward is done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from partitioner.ir.graph import Graph
from partitioner.ir.memory import Memory, OpMemory
from partitioner.ir.program import Copy, Free, Program, Run, inputs_of, original, outputs_of
from partitioner.ir.task import TaskGraph

Key = tuple[str, int | str]
"""A storage on a device: its number, or the name of the copy that it is."""


class Change(NamedTuple):
    """Memory that is taken, or given back: when, where, what for, by whom, bytes."""

    at: str
    device: str
    kind: str
    name: str
    bytes: int


@dataclass
class _Gradient:
    """The gradient of a value: where it lies, its bytes, and of how many values it is the gradient."""

    device: str
    bytes: int
    name: str
    holders: int = 1


class Replay:
    """Replays a program.

    Args:
        program: its values are inputs and ops of the graph that ``memory`` tells of.
        tasks: the ops of each task.
        memory: what each op takes.

    Attributes:
        device: torch device of each op, once it has run.
        last: the last Run that uses a value of one CPU lane, which goes as soon as no op of that needs it.
        origin: for each op, the last writer of each value that it takes and that was written since it was made.
    """

    def __init__(self, program: Program, tasks: TaskGraph, memory: Memory) -> None:
        self.program, self.tasks, self.memory = program, tasks, memory
        self.device: dict[str, str] = {}
        self.last = dict(self._last_uses())
        self.origin = _origins(tasks.graph)
        self.holders: Counter[Key] = Counter()
        self.kind: dict[Key, str] = {}
        self.size: dict[Key, int] = {}
        self.copied: dict[Key, Key] = {}
        self.held: dict[str, list[Key]] = {}
        self.saved: dict[str, list[Key]] = {}
        self.gradients: defaultdict[str, list[_Gradient]] = defaultdict(list)
        self.trained: set[int] = set()

    # Forward ----------------------------------------------------------------------------------------------------------

    def forward(self) -> Iterator[Change]:
        """What instructions take and give back."""
        for item in self.program.instructions:
            match item:
                case Run():
                    yield from self._run(item, self.program.lanes[item.lane].torch_device)
                case Copy():
                    yield from self._copy(item, self.program.lanes[item.lane].torch_device)
                case Free(value=value):
                    yield from self._drop(f"free {value}", self.held.pop(value, ()))

    def _run(self, item: Run, device: str) -> Iterator[Change]:
        ops = self.tasks.by_name[item.task].ops
        dead = [name for name in item.reads if self.last.get(name) is item]
        gone = self.tasks.graph.last_uses(ops, item.writes, dead)
        for op in ops:
            self.device[op] = device
            facts = self.memory.ops[op]
            keys = [self._key(number, device) for number in facts.results if self._is_ours(number, device)]
            yield from self._hold(op, keys)
            self.held[op] = keys
            yield from self._save(op, facts, device)
            yield Change(op, device, "workspace", op, facts.workspace)
            yield Change(op, device, "workspace", op, -facts.workspace)
            for name in gone[op]:
                yield from self._drop(op, self.held.pop(name, ()))

    def _last_uses(self) -> Iterator[tuple[str, Run]]:
        users: defaultdict[str, list[Run | Copy]] = defaultdict(list)
        for item in self.program.instructions:
            if isinstance(item, Run | Copy):
                for name in (*inputs_of(item), *outputs_of(item)):
                    users[name].append(item)
        for name, items in users.items():
            lanes, last = {item.lane for item in items}, items[-1]
            single = len(lanes) == 1 and self.program.lanes[last.lane].kind == "cpu"
            if single and isinstance(last, Run) and name not in self.program.outputs:
                yield name, last

    def _copy(self, item: Copy, device: str) -> Iterator[Change]:
        key: Key = (device, item.target)
        self.size[key], self.kind[key] = self.program.by_name[item.target].bytes, "copies"
        for number in self.memory.values.get(original(item.source), ()):
            self.copied[device, number] = key
        self.held[item.target] = [key]
        yield from self._hold(item.target, [key])

    def _save(self, op: str, facts: OpMemory, device: str) -> Iterator[Change]:
        """Keep what the op's backward needs."""
        if not self.memory.training:
            return
        keys = [self._key(number, device) for number in facts.saved if self._is_ours(number, device)]
        for key in keys:
            if self.kind[key] != "saved" and self.holders[key]:
                yield Change(op, key[0], self.kind[key], self._name(key), -self.size[key])
                yield Change(op, key[0], "saved", self._name(key), self.size[key])
            self.kind[key] = "saved"
        yield from self._hold(op, keys)
        self.saved[op] = keys
        yield Change(op, device, "saved", op, facts.kept)

    def _key(self, number: int, device: str) -> Key:
        key: Key = self.copied.get((device, number), (device, number))
        if key not in self.size:
            self.size[key], self.kind[key] = self.memory.storages[number].bytes, "activations"
        return key

    def _is_ours(self, number: int, device: str) -> bool:
        """Whether a storage is the program's: state and inputs are there before it, and after it."""
        return self.memory.storages[number].origin == "op" or (device, number) in self.copied

    def _name(self, key: Key) -> str:
        return key[1] if isinstance(key[1], str) else self.memory.storages[key[1]].name

    def _hold(self, at: str, keys: Iterable[Key]) -> Iterator[Change]:
        for key in keys:
            self.holders[key] += 1
            if self.holders[key] == 1:
                yield Change(at, key[0], self.kind[key], self._name(key), self.size[key])

    def _drop(self, at: str, keys: Iterable[Key]) -> Iterator[Change]:
        for key in keys:
            self.holders[key] -= 1
            if not self.holders[key]:
                yield Change(at, key[0], self.kind[key], self._name(key), -self.size[key])

    # Backward ---------------------------------------------------------------------------------------------------------

    def backward(self) -> Iterator[Change]:
        """What autograd takes and gives back, when every result of the program gets a gradient; and the optimizer's step."""
        for name in self.program.outputs:
            source = self.origin[""].get(name, name)
            if source in self.device and self.memory.ops[source].differentiable:
                given = _Gradient(self.device[source], self.program.by_name[name].bytes, name)
                yield self._taken(f"backward of {source}", given)
                self.gradients[source].append(given)
        for op in reversed(list(self.device)):
            yield from self._back(op, self.memory.ops[op], f"backward of {op}")

    def _back(self, op: str, facts: OpMemory, at: str) -> Iterator[Change]:
        """The backward of one op, if the gradient of its result has come."""
        device, arrived = self.device[op], self.gradients.pop(op, [])
        if arrived and facts.differentiable:
            for number, gradient in enumerate(arrived):
                if gradient.device != device:
                    arrived[number] = _Gradient(device, gradient.bytes, op)
                    yield self._taken(at, arrived[number])
                    yield from self._let_go(at, gradient)
            yield Change(at, device, "backward", op, facts.backward)
            yield Change(at, device, "backward", op, -facts.backward)
            yield from self._train(at, device, facts.trains)
            arrived[0].holders += sum(not fresh for _, fresh in facts.gradients)
        for gradient in arrived:
            yield from self._let_go(at, gradient)
        if arrived and facts.differentiable:
            for name, fresh in facts.gradients:
                gradient = _Gradient(device, fresh, name) if fresh else arrived[0]
                if fresh:
                    yield self._taken(at, gradient)
                yield from self._accumulate(at, self.origin[op].get(name, name), gradient)
        yield from self._drop(at, self.saved.pop(op, ()))
        if self.memory.training:
            yield Change(at, device, "saved", op, -facts.kept)

    def _accumulate(self, at: str, name: str, gradient: _Gradient) -> Iterator[Change]:
        """Add a gradient to what a value has got so far: in place, unless that is somebody else's gradient as well."""
        known = self.gradients[name]
        several = len(self.memory.values.get(name, ())) > 1
        if not known or several or known[-1].device != gradient.device:
            known.append(gradient)
        elif known[-1].holders == 1:
            yield from self._let_go(at, gradient)
        else:
            value = self.tasks.graph.by_name.get(name)  # either gradient may be a part of a larger one
            total = _Gradient(gradient.device, gradient.bytes if value is None else value.bytes, name)
            yield self._taken(at, total)
            yield from self._let_go(at, known[-1])
            yield from self._let_go(at, gradient)
            known[-1] = total

    def _train(self, at: str, device: str, names: Iterable[str]) -> Iterator[Change]:
        """Gradients of parameters stay."""
        for name in names:
            weight = self.memory.state[name]
            if weight.storage not in self.trained:
                self.trained.add(weight.storage)
                yield Change(at, device, "gradients", name, weight.gradient)

    def _taken(self, at: str, gradient: _Gradient) -> Change:
        return Change(at, gradient.device, "backward", gradient.name, gradient.bytes)

    def _let_go(self, at: str, gradient: _Gradient) -> Iterator[Change]:
        gradient.holders -= 1
        if not gradient.holders:
            yield Change(at, gradient.device, "backward", gradient.name, -gradient.bytes)


def _origins(graph: Graph) -> dict[str, dict[str, str]]:
    """For each op, and for the results under ``""``: of each value that was written since it was made, the last op to do so."""
    wrote: dict[str, str] = {}
    found: dict[str, dict[str, str]] = {}

    def last(name: str) -> str:
        storages = graph.by_name[name].storages if name in graph.by_name else (name,)
        writers = (wrote[each] for each in storages if each in wrote)
        return max((name, *writers), key=lambda op: graph.position.get(op, -1))

    for op in graph.ops:
        found[op.name] = {name: writer for name in op.inputs if (writer := last(name)) != name}
        wrote.update((access.resource, op.name) for access in op.accesses if access.write)
    found[""] = {name: writer for name in graph.outputs if (writer := last(name)) != name}
    return found
