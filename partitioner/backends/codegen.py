"""A program as Python source: one function for each thread that issues it.

A *host* is a thread that issues instructions: the caller's issues every accelerator lane and one CPU lane, each further CPU
lane has a worker. Values that cross hosts go through slots; everything else is a local variable, dropped after its last use.
State is looked up in the module's own dictionaries at every call, so the code never goes stale.

    def host_0(R, S, x):                       R: the model, S: one call's events and slots
        left = R._modules['left']
        ...
        S.record(0, 0)
        left_0 = left._modules['0'](x)         # in left.0 at model.py:12
        S.wait(1, 0)
        cat = torch_cat([left_0, S.slots[0]])
        return [cat]
"""

from __future__ import annotations

import linecache
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from types import CodeType
from typing import Any

import torch
from torch.fx.graph import magic_methods

from partitioner.analysis.concurrency import runs_alone
from partitioner.backends.nodes import constants_for, results, retarget
from partitioner.ir.graph import Op
from partitioner.ir.program import Copy, Free, Instruction, Record, Run, Wait
from partitioner.plan import Plan

_numbers = count()


@dataclass(frozen=True)
class Code:
    """Generated functions.

    Args:
        source: the text, also known to `linecache`, so that tracebacks show it.
        file: the name under which it is known.
        hosts: one function for each host; the first returns the graph's results.
        events: number of events that one call needs.
        slots: number of values that cross hosts.
        ops: the op that each line of the source calls, by line number.
    """

    source: str
    file: str
    hosts: tuple[Callable[..., Any], ...]
    events: int
    slots: int
    ops: Mapping[int, Op]


def hosts_of(plan: Plan) -> list[int]:
    """The host of each lane: 0 for accelerators and the first CPU lane, one each for further CPU lanes that are used."""
    used = {item.lane for item in plan.program.instructions if isinstance(item, Run | Copy)}
    numbers: list[int] = []
    following, first_cpu = count(1), True
    for index, lane in enumerate(plan.program.lanes):
        if lane.kind != "cpu" or first_cpu or index not in used:
            numbers.append(0)
        else:
            numbers.append(next(following))
        first_cpu = first_cpu and lane.kind != "cpu"
    return numbers


def generate(plan: Plan, *, hosts: list[int] | None = None) -> Code:
    """Python functions that issue ``plan.program``.

    Args:
        plan: what to emit.
        hosts: the host of each lane; all zero gives one function that issues everything in order.
    """
    writer = _Writer(plan, hosts_of(plan) if hosts is None else hosts)
    source = writer.write()
    file = f"<partitioner {plan.graph.name} {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    code: CodeType = compile(source, file, "exec")
    exec(code, writer.names)  # our own text, made from a verified program
    functions = tuple(writer.names[f"host_{number}"] for number in range(writer.host_count))
    return Code(source, file, functions, writer.events, len(writer.slots), writer.ops)


class _Writer:
    """Writes the text. `names` is the namespace it runs in: functions, dtypes, constants."""

    def __init__(self, plan: Plan, hosts: list[int]) -> None:
        self.plan, self.program, self.hosts = plan, plan.program, hosts
        self.host_count = max(hosts) + 1
        self.nodes = {node.name: node for node in plan.graph.fx.nodes}
        lane = plan.placement.lane
        self.device = {op: plan.machine.lanes[lane[task]].torch_device for op, task in plan.tasks.task_of.items()}
        self.names: dict[str, Any] = {"torch": torch, "C": constants_for(plan.graph, self.device.__getitem__)}
        self.labels: dict[int, str] = {}
        self.modules: dict[str, str] = {"": "R"}
        self.taken = {variable(name) for name in (*self.nodes, *(value.name for value in self.program.values))}
        self.lines: list[str] = []
        self.ops: dict[int, Op] = {}
        self.events = 1 + max((item.event for item in self.program.instructions if isinstance(item, Record | Wait)), default=-1)
        self.accelerated = any(item.kind != "cpu" for item in self.program.lanes)
        self.maker = {name: item.lane for item in self.program.instructions for name in _made(item)}
        self.event_lanes: defaultdict[int, set[int]] = defaultdict(set)
        for item in self.program.instructions:
            if isinstance(item, Record | Wait):
                self.event_lanes[item.event].add(item.lane)
        self.home = {name: hosts[self.maker.get(name, 0)] for name in (*self.program.inputs, *self.maker)}
        self.slots = self._slots()
        self.alone = runs_alone(self.program)

    def _slots(self) -> dict[str, int]:
        """A slot for each value that another host than its own reads, or that is returned."""
        crossing: dict[str, None] = {}
        for item in self.program.instructions:
            crossing.update((name, None) for name in _read(item) if self.home[name] != self.hosts[item.lane])
        crossing.update((name, None) for name in self.program.outputs if self.home[name] != 0)
        return {name: number for number, name in enumerate(crossing)}

    def write(self) -> str:
        for host in range(self.host_count):
            self._write_host(host)
        return "\n".join(self.lines) + "\n"

    def _write_host(self, host: int) -> None:
        items = [(index, item) for index, item in enumerate(self.program.instructions) if self.hosts[item.lane] == host]
        inputs = ", ".join(map(variable, self.program.inputs)) if host == 0 else ""
        self.lines.append(f"def host_{host}(R, S{', ' + inputs if inputs else ''}):")
        start = len(self.lines)
        if host == 0:
            self.lines += (
                f"    S.slots[{self.slots[name]}] = {variable(name)}" for name in self.program.inputs if name in self.slots
            )
        self.lines += self._module_lines([item for _, item in items])
        _Body(self, host, items).write()
        if host == 0:
            self.lines.append(f"    return [{', '.join(self._returned())}]")
        elif len(self.lines) == start:
            self.lines.append("    pass")
        self.lines.append("")

    def _returned(self) -> Iterator[str]:
        for node in results(self.plan.graph):
            if isinstance(node, torch.fx.Node):
                yield self.reference(node.name, 0)
            else:
                yield self.argument(node, str)

    def reference(self, value: str, host: int) -> str:
        """How ``host`` reads a value."""
        return variable(value) if self.home[value] == host else f"S.slots[{self.slots[value]}]"

    def _module_lines(self, items: list[Instruction]) -> Iterator[str]:
        """Local names for the modules whose state or calls this host needs, outer ones first."""
        paths: dict[str, None] = {}
        for item in items:
            if isinstance(item, Run):
                for op in self.plan.tasks.by_name[item.task].ops:
                    for parts in self._module_paths(self.nodes[op]):
                        for length in range(1, len(parts) + 1):
                            paths[".".join(parts[:length])] = None
        for path in sorted(paths):
            parent, _, name = path.rpartition(".")
            yield f"    {self.module(path)} = {self.module(parent)}._modules[{name!r}]"

    def _module_paths(self, node: torch.fx.Node) -> Iterator[list[str]]:
        loads = [source for source in node.all_input_nodes if source.op == "get_attr"] + (
            [node] if node.op == "get_attr" else []
        )
        for load in loads:
            if str(load.target) not in self.plan.graph.constants:
                yield str(load.target).split(".")[:-1]
        if node.op == "call_module":
            yield str(node.target).split(".")

    def state(self, path: str) -> str:
        """An expression for a parameter, buffer, attribute or constant."""
        if path in self.plan.graph.constants:
            return f"C[{path!r}]"
        owner, _, name = path.rpartition(".")
        return f"{self.module(owner)}.{name}" if name.isidentifier() else f"getattr({self.module(owner)}, {name!r})"

    def module(self, path: str) -> str:
        """The local name of a submodule."""
        if path not in self.modules:
            self.modules[path] = self._fresh("m_" + re.sub(r"\W", "_", path))
        return self.modules[path]

    def _fresh(self, label: str) -> str:
        while label in self.taken:
            label = f"{label}_"
        self.taken.add(label)
        return label

    def argument(self, value: Any, node_text: Callable[[torch.fx.Node], str]) -> str:
        """Source text of one argument."""
        if isinstance(value, torch.fx.Node):
            return node_text(value)
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            inner = ", ".join(self.argument(item, node_text) for item in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, list):
            return f"[{', '.join(self.argument(item, node_text) for item in value)}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.constant(k)}: {self.argument(v, node_text)}' for k, v in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({', '.join(self.argument(part, node_text) for part in (value.start, value.stop, value.step))})"
        return self.constant(value)

    def constant(self, value: Any) -> str:
        """Source text of a value that is no structure: a literal, or a name in the namespace."""
        if value is Ellipsis:
            return "..."
        if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value)
        return self.name(value, re.sub(r"\W", "_", str(value) if isinstance(value, torch.device) else type(value).__name__))

    def name(self, value: Any, label: str) -> str:
        """A name for any object, the same one each time."""
        if id(value) not in self.labels:
            self.labels[id(value)] = self._fresh(label)
            self.names[self.labels[id(value)]] = value
        return self.labels[id(value)]


def variable(value: str) -> str:
    """The local variable of a value. Copies are named after their device; ``R``, ``S``, ``C`` and ``torch`` are ours."""
    name = re.sub(r"\W", "_", value.replace("@", "__on__"))
    return f"{name}_" if name in _OURS else name


_OURS = frozenset({"R", "S", "C", "torch"})


def _made(item: Instruction) -> tuple[str, ...]:
    return item.writes if isinstance(item, Run) else (item.target,) if isinstance(item, Copy) else ()


def _read(item: Instruction) -> tuple[str, ...]:
    return item.reads if isinstance(item, Run) else (item.source,) if isinstance(item, Copy) else ()


class _Body:
    """Writes one host's instructions."""

    def __init__(self, writer: _Writer, host: int, items: list[tuple[int, Instruction]]) -> None:
        self.writer, self.host, self.items = writer, host, items
        self.program = writer.program
        self.lane: int | None = None
        self.alone: bool | None = True if host == 0 else None
        self.last_use = self._last_uses()

    def _last_uses(self) -> dict[str, int]:
        """The last instruction of this host that uses each of its local values."""
        last: dict[str, int] = {}
        for index, item in self.items:
            last.update((name, index) for name in (*_read(item), *_made(item)) if self.writer.home[name] == self.host)
        return last

    def write(self) -> None:
        for index, item in self.items:
            match item:
                case Run():
                    self._run(index, item)
                case Copy(lane=lane, source=source, target=target):
                    self._use(lane)
                    self._line(f"{variable(target)} = S.copy({self.writer.reference(source, self.host)}, {lane})")
                    self._made(item)
                case Record(lane=lane, event=event):
                    self._record(lane, event)
                case Wait(lane=lane, event=event):
                    self._wait(lane, event)
                case Free(value=value):
                    self._free(value)
            if not isinstance(item, Free):
                self._drop(index, item)

    def _line(self, text: str, op: Op | None = None) -> None:
        self.writer.lines.append(f"    {text}")
        if op is not None:
            self.writer.ops[len(self.writer.lines)] = op

    def _use(self, lane: int) -> None:
        if self.writer.accelerated and lane != self.lane and self.program.lanes[lane].kind != "cpu":
            self.lane = lane
            self._line(f"S.use({lane})")

    def _run(self, index: int, item: Run) -> None:
        self._use(item.lane)
        alone = self.writer.alone.get(index)
        if alone is not None and alone != self.alone and self.writer.host_count > 1:
            self.alone = alone
            self._line(f"S.threads({alone})")
        self._keep(item)
        local = {name.partition("@")[0]: self.writer.reference(name, self.host) for name in item.reads}
        _Task(self, item, local).write()
        self._made(item)

    def _keep(self, item: Run) -> None:
        """Autograd may save what this lane reads, and let go of it before the lane's backward has run."""
        if self.program.lanes[item.lane].kind == "cpu":
            return
        for name in item.reads:
            if self.program.by_name[name].device and self.writer.maker.get(name, 0) != item.lane:
                self._line(f"S.keep({self.writer.reference(name, self.host)}, {item.lane})")

    def _made(self, item: Instruction) -> None:
        for name in _made(item):
            if name in self.writer.slots:
                self._line(f"S.slots[{self.writer.slots[name]}] = {variable(name)}")

    def _record(self, lane: int, event: int) -> None:
        if self._needed(event):
            self._line(f"S.record({event}, {lane})")

    def _wait(self, lane: int, event: int) -> None:
        if self._needed(event):
            self._line(f"S.wait({event}, {lane})")

    def _needed(self, event: int) -> bool:
        """Between CPU lanes of one host there is nothing to wait for."""
        lanes = self.writer.event_lanes[event]
        crosses = len({self.writer.hosts[lane] for lane in lanes}) > 1
        return crosses or any(self.program.lanes[lane].kind != "cpu" for lane in lanes)

    def _free(self, value: str) -> None:
        if value in self.writer.slots:
            self._line(f"S.slots[{self.writer.slots[value]}] = None")
        if self.writer.home[value] == self.host and not self._dropped_early(value):
            self._line(f"del {variable(value)}")

    def _dropped_early(self, value: str) -> bool:
        """A CPU's memory belongs to no lane: a local name goes after its last use, and the slot keeps what others need."""
        return self.program.by_name[value].device in ("", "cpu")

    def _drop(self, index: int, item: Instruction) -> None:
        used = dict.fromkeys((*_read(item), *_made(item)))
        for name in used:
            returned = name in self.program.outputs and self.host == 0
            done = self.writer.home[name] == self.host and self.last_use[name] == index and not returned
            if done and (name in self.program.inputs or self._dropped_early(name)):
                self._line(f"del {variable(name)}")


class _Task:
    """Writes one task's ops."""

    def __init__(self, body: _Body, item: Run, local: dict[str, str]) -> None:
        self.body, self.writer, self.item, self.local = body, body.writer, item, local
        self.ops = self.writer.plan.tasks.by_name[item.task].ops

    def write(self) -> None:
        last = self._last_uses()
        for op in self.ops:
            node = self.writer.nodes[op]
            self.local[op] = variable(op)
            text = f"{variable(op)} = {self._call(node)}"
            known = self.writer.plan.graph.by_name[op]
            self.body._line(f"{text}  # {known.where}" if known.where else text, known)
            gone = [variable(name) for name in last[op]]
            if gone:
                self.body._line(f"del {', '.join(gone)}")

    def _last_uses(self) -> Mapping[str, list[str]]:
        """For each op, the temporaries that nothing after it in the task uses."""
        own = set(self.ops) - set(self.item.writes)
        last: dict[str, str] = {}
        for op in self.ops:
            for name in (op, *(source.name for source in self.writer.nodes[op].all_input_nodes)):
                if name in own:
                    last[name] = op
        gone: defaultdict[str, list[str]] = defaultdict(list)
        for name, op in last.items():
            gone[op].append(name)
        return gone

    def _text(self, node: torch.fx.Node) -> str:
        return self.local[node.name] if node.name in self.local else self.writer.state(str(node.target))

    def _call(self, node: torch.fx.Node) -> str:
        writer = self.writer
        if node.op == "get_attr":
            return writer.state(str(node.target))
        target, args, kwargs = retarget(node, writer.device[node.name])
        texts = [writer.argument(arg, self._text) for arg in args]
        if node.op == "call_function" and not kwargs:
            operator = _infix(target, texts)
            if operator is not None:
                return operator
        texts += (f"{key}={writer.argument(arg, self._text)}" for key, arg in kwargs.items())
        if node.op == "call_module":
            return f"{writer.module(target)}({', '.join(texts)})"
        if node.op == "call_method":
            return f"{texts[0]}.{target}({', '.join(texts[1:])})"
        return f"{writer.name(target, _label(target))}({', '.join(texts)})"


def _infix(target: Any, texts: list[str]) -> str | None:
    """An operator as an operator: one bytecode instead of a call."""
    name = getattr(target, "__name__", "")
    if getattr(target, "__module__", "") != "_operator" or name not in magic_methods:
        return None
    form = magic_methods[name]
    if form.count("{}") != len(texts):
        return None
    return form.format(*texts)


def _label(target: Any) -> str:
    """A readable name for a function: ``aten_relu_default``, ``functional_relu``."""
    if isinstance(target, torch._ops.OpOverload):
        return re.sub(r"\W", "_", str(target))
    module = getattr(target, "__module__", None) or "torch"
    return re.sub(r"\W", "_", f"{module.rpartition('.')[2].lstrip('_')}_{getattr(target, '__name__', 'call')}")
