"""Plans as a document: what was planned for one model on one machine, in a form that is written, compared and applied again.

    {"schema_version": 1, "model": "Towers",
     "devices": [{"name": "gpu0", "device": "cuda:0", "lanes": 2, ...}],
     "links": [{"source": "gpu0", "targets": ["gpu1"], "bandwidth": 5e10, ...}],
     "programs": [{
       "inputs": {"x": "float32[2, 4]"},  "state": {"left.weight": "float32[4, 4]", "left.bias": "float32[4]"},
       "ops":   [{"name": "left_linear", "call": "linear(x, p_left_weight, p_left_bias)", "gives": ["float32[2, 4]"]}],
       "outputs": ["left_linear"],  "fingerprint": "6f1c...",  "policy": "list",  "makespan": 1e-05,  ...
       "tasks": [{"name": "t0", "lane": "gpu0/0", "start": 0.0, "end": 1e-05, "ops": ["left_linear"], "reason": "..."}]}]}

Rows are in a fixed order: ops in that of the program, tasks in that in which they are issued. The fingerprint covers what a
program computes. Nothing in a document is code: programs are traced from the model, and a document only says what goes where.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from partitioner.ir.machine import Device, Link, Machine
from partitioner.ir.problem import Objective

WIDTH = 128
"""Up to so many characters, a list or mapping of plain values is written in one line."""

Name = Annotated[str, Field(min_length=1, max_length=4096)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Row(BaseModel, frozen=True, extra="forbid", strict=True):
    """Something that a document holds: of the types that are written, and no field that nobody knows."""


class SavedDevice(Row):
    """A device and its figures, as in `Device`."""

    name: Name
    device: Name
    lanes: int = Field(default=1, ge=1, le=1024)
    memory: int | None = Field(default=None, ge=0)
    flops: Rate
    bandwidth: Rate
    overhead: Seconds
    handoff: Seconds
    cores: int = Field(default=1, ge=1)
    rates: dict[str, Rate] = {}
    assumed: tuple[str, ...] = ()


class SavedLinks(Row):
    """Equal one-way links from one device to others, by name; figures as in `Link`."""

    source: Name
    targets: tuple[Name, ...] = Field(min_length=1)
    bandwidth: Rate
    latency: Seconds
    assumed: tuple[str, ...] = ()


class SavedOp(Row):
    """One op: its call, dtype and shape of what it gives, and the earlier ops that it waits for beside those it reads."""

    name: Name
    call: str
    gives: tuple[str, ...] = ()
    after: tuple[Name, ...] = ()


class SavedTask(Row):
    """Ops that run together: on which lane, how many threads inside an op (0: the lane's share), when, and why there."""

    name: Name
    lane: Name
    threads: int = Field(default=0, ge=0)
    start: Seconds
    end: Seconds
    ops: tuple[Name, ...] = Field(min_length=1)
    reason: str = ""


class SavedGraph(Row):
    """What a traced graph computes.

    Args:
        inputs: dtype and shape of each input, by name.
        state: likewise of parameters, buffers and constants.
        ops: in program order.
        outputs: the names of what it returns.
    """

    inputs: dict[str, str] = {}
    state: dict[str, str] = {}
    ops: tuple[SavedOp, ...] = ()
    outputs: tuple[str, ...] = ()

    def digest(self) -> str:
        """SHA-256 over all of it: graphs of equal digests take the same plan.

        >>> SavedGraph(inputs={"x": "float32[2]"}, outputs=("x",)).digest()[:8]
        'c68a35bc'
        """
        rows = [[op.name, op.call, op.gives, op.after] for op in self.ops]
        words = [list(self.inputs.items()), sorted(self.state.items()), rows, self.outputs]
        return hashlib.sha256(json.dumps(words, separators=(",", ":")).encode()).hexdigest()


class SavedProgram(SavedGraph):
    """A graph and what was decided about it.

    Args:
        fingerprint: the graph's digest.
        policy: who decided.
        note: a reason for all of it.
        makespan: expected seconds of a call; ``None`` where no shapes were known.
        serial: likewise on the first device alone.
        objective: what the policy made small: the seconds of a call, those for which the busiest device is busy, or the
            bytes of the fullest one.
        cost: how much that is.
        bound: how much it is at least, for any plan of these tasks on this machine.
        tasks: in the order in which they are issued.
    """

    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    policy: str
    note: str = ""
    makespan: Seconds | None = None
    serial: Seconds | None = None
    objective: Objective = "latency"
    cost: Seconds
    bound: Seconds
    tasks: tuple[SavedTask, ...] = ()

    @model_validator(mode="after")
    def _agrees(self) -> SavedProgram:
        if self.digest() != self.fingerprint:
            raise ValueError("the fingerprint is not that of inputs, state, ops and outputs; those are not to be edited")
        distinct("op", [op.name for op in self.ops])
        distinct("task", [task.name for task in self.tasks])
        held = [op for task in self.tasks for op in task.ops]
        distinct("op in a task", held)
        if odd := {op.name for op in self.ops} ^ set(held):
            first = min(odd)
            raise ValueError(f"{first} is in no task" if first not in held else f"a task holds {first}, which is no op")
        return self


class SavedPlan(Row):
    """A whole document: the programs of one model on one machine. `text` writes it, and `lower/planfile.py` reads it.

    >>> SavedPlan(schema_version=1, model="Towers", devices=(), programs=()).text()
    '{"schema_version": 1, "model": "Towers", "devices": [], "programs": []}\\n'
    """

    schema_version: int = Field(ge=1, le=1)
    model: str
    devices: tuple[SavedDevice, ...]
    links: tuple[SavedLinks, ...] = ()
    programs: tuple[SavedProgram, ...]

    @field_validator("links")
    @classmethod
    def _between_devices(cls, links: tuple[SavedLinks, ...], info: ValidationInfo) -> tuple[SavedLinks, ...]:
        names = {device.name for device in info.data.get("devices", ())}
        for each in links:
            for end in (each.source, *each.targets):
                if end not in names:
                    raise ValueError(f"a link names {end!r}, which is none of the devices")
        distinct("link", [f"{each.source} -> {target}" for each in links for target in each.targets])
        return links

    @model_validator(mode="after")
    def _agrees(self) -> SavedPlan:
        distinct("device", [device.name for device in self.devices])
        lanes = set(self.lanes)
        for program in self.programs:
            for task in program.tasks:
                if task.lane not in lanes:
                    raise ValueError(f"task {task.name} is on {task.lane!r}, which is no lane of the devices")
        distinct("fingerprint", [program.fingerprint for program in self.programs])
        return self

    @property
    def lanes(self) -> tuple[str, ...]:
        """``<device>/<index>`` for each lane."""
        return tuple(f"{device.name}/{index}" for device in self.devices for index in range(device.lanes))

    def machine(self) -> Machine:
        """The machine that the plan was made for."""
        devices = (dict(each) | {"rates": tuple(each.rates.items())} for each in self.devices)
        return Machine(
            tuple(Device(torch_device=str(fields.pop("device")), **fields) for fields in devices),
            tuple(
                Link(each.source, target, each.bandwidth, each.latency, each.assumed)
                for each in self.links
                for target in each.targets
            ),
        )

    def text(self) -> str:
        """The document as JSON in ASCII, a line for each op and each task, so that two of them can be compared line by line."""
        return "".join(_written(self.model_dump(mode="json", exclude_defaults=True), "")) + "\n"


def distinct(what: str, names: Iterable[str]) -> None:
    """Refuse what is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name} is written twice")
        seen.add(name)


def _written(value: Any, indent: str, row: bool = False) -> Iterator[str]:
    """``value`` as JSON; in one line if it is the row of a list and holds no rows itself, or is short."""
    children = list(value.values() if isinstance(value, dict) else value) if isinstance(value, dict | list) else []
    line = json.dumps(value, allow_nan=False)
    if not children or (not _nests(children) and (row or len(indent) + len(line) <= WIDTH)):
        yield line
        return
    inner = indent + " "
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(children)
    yield opening
    for number, (key, child) in enumerate(zip(keys, children, strict=True)):
        yield f"{',' if number else ''}\n{inner}{key}"
        yield from _written(child, inner, row=isinstance(value, list))
    yield f"\n{indent}{closing}"


def _nests(children: list[Any]) -> bool:
    """Whether a value below holds mappings, which are rows of their own."""
    return any((isinstance(child, dict) and child) or (isinstance(child, list) and _nests(child)) for child in children)
