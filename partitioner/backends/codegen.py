"""A program as Python source: one function for each thread that issues it.

A *host* is a thread that issues instructions: the caller's issues every accelerator lane and one CPU lane, each further CPU
lane has a worker. Values that cross hosts go through slots; everything else is a local variable, dropped after its last use.

    def host_0(A, S):                          A: the call's arguments, S: its events and slots
        x = A[0]; p_left_weight = A[1]
        S.record(0, 0)
        left = nn_linear(x, p_left_weight)     # in left at model.py:12
        S.wait(1, 0)
        cat = torch_cat([left, S.slots[0]])
        return [cat]
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from partitioner.backends.bodies import Body
from partitioner.backends.context import Context
from partitioner.backends.names import variable
from partitioner.backends.nodes import results
from partitioner.ir.access import LATER, Access
from partitioner.ir.gradient import Gradient
from partitioner.ir.graph import Op
from partitioner.ir.mode import Mode
from partitioner.ir.plan import Plan
from partitioner.ir.program import Copy, Free, Instruction, Program, Record, Run, Wait, inputs_of, original, outputs_of

_numbers = count()


@dataclass(frozen=True, eq=False)
class Code:
    """Generated functions.

    Args:
        source: the text, also known to `linecache`, so that tracebacks show it.
        file: the name under which it is known.
        hosts: one function for each host; the first returns the graph's results.
        events: number of events that one call needs.
        slots: number of values that cross hosts.
        ops: the op that each line of the source calls, by line number.
        shared: positions of the arguments that several hosts use.
        modes: those that ``S.mode`` is called with, by number.
        shares_first: whether the first task has other lanes beside it, and not all threads of the CPU.
        narrow: among how many lanes threads are shared where one host does everything.
        short: whether no op has more threads than a lane's share, and no lane is an accelerator's: a call starts no threads.
    """

    source: str
    file: str
    hosts: tuple[Callable[..., Any], ...]
    events: int
    slots: int
    ops: Mapping[int, Op]
    shared: tuple[int, ...]
    modes: tuple[Mode, ...] = ()
    shares_first: bool = False
    narrow: int = 1
    short: bool = False


@dataclass
class Lines:
    """Source text as it grows, with the op of each line."""

    text: list[str] = field(default_factory=list)
    ops: dict[int, Op] = field(default_factory=dict)
    depth: int = 1

    def add(self, line: str, op: Op | None = None) -> None:
        """One more line of a function's body."""
        self.text.append(f"{'    ' * self.depth}{line}")
        if op is not None:
            self.ops[len(self.text)] = op


def hosts_of(program: Program) -> list[int]:
    """The host of each lane: 0 for accelerators and the first CPU lane, one each for further CPU lanes that are used.

    Lanes that will draw random numbers in backward have one host, for then autograd keeps their order.
    """
    used = {item.lane for item in program.instructions if isinstance(item, Run | Copy)}
    drawing = {item.lane for item in program.instructions if isinstance(item, Run) and Access(LATER, True) in item.touches}
    first = next((number for number, lane in enumerate(program.lanes) if lane.kind == "cpu"), None)
    free = [number for number, lane in enumerate(program.lanes) if lane.kind == "cpu" and number != first and number in used]
    if len(drawing) > 1:
        free = [number for number in free if number not in drawing]
    return [free.index(number) + 1 if number in free else 0 for number in range(len(program.lanes))]


def generate(
    plan: Plan,
    *,
    hosts: list[int] | None = None,
    gradients: Sequence[Gradient] = (),
    compiled: Mapping[str, Body] | None = None,
    ranges: bool = False,
) -> Code:
    """Python functions that issue ``plan.program``.

    Args:
        plan: what to emit.
        hosts: the host of each lane; all zero gives one function that issues everything in order.
        gradients: those that are handed over where its backward runs on lanes; the code then says where.
        compiled: a function for each task that is called as one, by the task's name.
        ranges: whether each task is a named range, for torch.profiler.
    """
    context = Context(plan, hosts_of(plan.program) if hosts is None else hosts, gradients, compiled or {})
    lines = Lines()
    for host in range(max(context.hosts) + 1):
        _Host(context, host, lines, ranges).write()
    source = "\n".join(lines.text) + "\n"
    file = f"<partitioner {plan.graph.name} {next(_numbers)}>"
    exec(compile(source, file, "exec"), context.names.namespace)  # our own text, made from a verified program
    functions = tuple(context.names.namespace[f"host_{host}"] for host in range(max(context.hosts) + 1))
    shared, modes = context.shared(), tuple(context.modes)
    sizes = context.events, len(context.slots)
    code = Code(source, file, functions, *sizes, lines.ops, shared, modes, context.shares_first, context.narrow, context.short)
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    weakref.finalize(code, linecache.cache.pop, file, None)
    return code


class _Host:
    """Writes the function of one host."""

    def __init__(self, context: Context, host: int, lines: Lines, ranges: bool) -> None:
        self.context, self.host, self.lines, self.ranges = context, host, lines, ranges
        self.program = context.program
        self.items = [(index, item) for index, item in enumerate(self.program.instructions) if context.hosts[item.lane] == host]
        self.last_use = {
            name: index
            for index, item in self.items
            for name in (*inputs_of(item), *outputs_of(item))
            if context.home.get(name) == host
        }
        self.lane: int | None = None
        self.mode: Mode | None = None
        self.alone: bool | None = True if host == 0 else None  # a worker's thread comes with whatever it had last

    def write(self) -> None:
        """The whole function."""
        self.lines.text.append(f"def host_{self.host}(A, S):")
        for name in self.context.used_arguments[self.host]:
            self.lines.add(f"{variable(name)} = A[{self.context.position[name]}]")
        for index, item in self.items:
            self._instruction(index, item)
            self._drop(index, item)
        self._mode(None)
        returned = ", ".join(self._returned()) if self.host == 0 else ""
        self.lines.add(f"return [{returned}]")
        self.lines.text.append("")

    def _returned(self) -> Iterator[str]:
        for result in results(self.context.plan.graph):
            if isinstance(result, torch.fx.Node):
                yield self.context.reference(result.name, 0)
            else:
                yield self.context.names.argument(result, {})

    def _mode(self, mode: Mode | None) -> None:
        """Put this host under the modes of the op that follows, unless it is; ``None`` for those of the call."""
        if mode != self.mode:
            self.mode = mode
            self.lines.add(f"S.mode({-1 if mode is None else self.context.modes.index(mode)})")

    def _instruction(self, index: int, item: Instruction) -> None:
        match item:
            case Run() if self.ranges:
                self._in_a_range(index, item)
            case Run():
                self._run(index, item)
            case Copy(lane=lane, source=source, target=target):
                self._use(lane)
                self._mode(self.context.plan.graph.recorded.get(original(source)))  # or it would have no history
                self.lines.add(f"{variable(target)} = S.copy({self.context.reference(source, self.host)}, {lane})")
            case Record(lane=lane, event=event) if self.context.needs_event(event):
                self.lines.add(f"S.record({event}, {lane})")
            case Wait(lane=lane, event=event) if self.context.needs_event(event):
                self.lines.add(f"S.wait({event}, {lane})")
            case Free(lane=lane, value=value):
                self._free(lane, value)
        for made in outputs_of(item):
            if made in self.context.slots:
                self.lines.add(f"S.slots[{self.context.slots[made]}] = {variable(made)}")

    def _use(self, lane: int) -> None:
        """Make an accelerator lane's stream current, unless it is."""
        if lane != self.lane and self.program.lanes[lane].kind != "cpu":
            self.lane = lane
            self.lines.add(f"S.use({lane})")

    def _in_a_range(self, index: int, item: Run) -> None:
        """Run a task under its name and its lane's."""
        label = self.context.names.object(torch.profiler.record_function, "record_function")
        self._use(item.lane)
        self.lines.add(f"with {label}({f'{item.task} on {self.program.lanes[item.lane].name}'!r}):")
        self.lines.depth += 1
        self._run(index, item)
        self.lines.depth -= 1

    def _run(self, index: int, item: Run) -> None:
        self._use(item.lane)
        self._share_threads(index)
        if self.program.lanes[item.lane].kind != "cpu":
            self._keep(item)
        if item.task in self.context.compiled:
            self._call(self.context.compiled[item.task], item)
            return
        local = {original(name): self.context.reference(name, self.host) for name in item.reads}
        ops = self.context.ops(item.task)
        dead = {name for name in (*item.reads, *item.writes) if self._is_dead(name, index) and name not in self.context.slots}
        kept = [name for name in item.writes if name not in dead]
        gone = self.context.plan.graph.last_uses(ops, kept, [original(name) for name in item.reads if name in dead])
        for op in ops:
            local[op] = variable(op)
            known = self.context.plan.graph.by_name[op]
            self._mode(known.mode)
            parts = self._parts(op, local)
            text = self.context.names.call(self.context.nodes[op], self.context.device.get(op), {**local, **parts})
            self.lines.add(f"{local[op]} = {text}{f'  # {known.where}' if known.where else ''}", known)
            self._hand_over(op, local)
            if gone[op] or parts:
                self.lines.add(f"del {', '.join([*(local.get(name, variable(name)) for name in gone[op]), *parts.values()])}")

    def _call(self, body: Body, item: Run) -> None:
        """Call a task as one function."""
        self._mode(None)
        local = {original(name): self.context.reference(name, self.host) for name in item.reads}
        given = ", ".join(local.get(name, variable(name)) for name in body.inputs)
        made = ", ".join(variable(name) for name in body.outputs)
        label = self.context.names.object(body, item.task)
        self.lines.add(f"{made} = {label}({given})  # {len(self.context.ops(item.task))} ops")

    def _parts(self, op: str, local: Mapping[str, str]) -> dict[str, str]:
        """Read what other segments made through views, at which backward ends; the name of each, by value."""
        found: dict[str, str] = {}
        for term, value, leaf in self.context.parts.get(op, ()):
            read = found.get(value) or local.get(value, variable(value))
            found.setdefault(value, self.context.names.fresh(f"{variable(value)}_part"))
            self.lines.add(f"{found[value]} = S.part({term!r}, {read}{'' if leaf is None else f', {leaf}'})")
        return found

    def _hand_over(self, op: str, local: Mapping[str, str]) -> None:
        """Note where the backward of this segment starts: at what others read."""
        for gradient in self.context.handed_over.get(op, ()):
            made = local.get(gradient.value, variable(gradient.value))
            self.lines.add(f"S.made({gradient.name!r}, {made}{'' if gradient.leaf is None else f', {gradient.leaf}'})")

    def _share_threads(self, index: int) -> None:
        """Where lanes share the CPU, an op gets all of its threads only while no other lane is busy."""
        alone = self.context.alone.get(index)
        if self.context.shared_cpu and alone is not None and alone != self.alone:
            self.alone = alone
            self.lines.add(f"S.threads({alone})")

    def _keep(self, item: Run) -> None:
        """Autograd may save what this lane reads, and let go of it before the lane's backward has run."""
        for name in item.reads:
            if self.program.by_name[name].torch_device and self.context.lane_of.get(name, 0) != item.lane:
                self.lines.add(f"S.keep({self.context.reference(name, self.host)}, {item.lane})")

    def _free(self, lane: int, value: str) -> None:
        if value in self.context.slots:
            self.lines.add(f"S.slots[{self.context.slots[value]}] = None")
        if self.context.home.get(value) == self.host and not self.context.belongs_to_no_lane(value):
            if self.context.is_late(lane, value):
                self.lines.add(f"S.late.append({variable(value)})")
            self.lines.add(f"del {variable(value)}")

    def _drop(self, index: int, item: Instruction) -> None:
        """Drop local names whose last use this was, and no op within it."""
        inlined = isinstance(item, Run) and item.task not in self.context.compiled
        for name in dict.fromkeys((*inputs_of(item), *outputs_of(item))):
            if self._is_dead(name, index) and (not inlined or name in self.context.slots):
                self.lines.add(f"del {variable(name)}")

    def _is_dead(self, name: str, index: int) -> bool:
        """Whether an instruction is the last to use a local name, and no lane has a say in when it goes."""
        mine = self.context.home.get(name) == self.host and self.last_use[name] == index
        returned = name in self.program.outputs and self.host == 0
        return mine and not returned and self.context.belongs_to_no_lane(name)
