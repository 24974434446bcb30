"""The tasks of a task graph as columns: names, seconds by kind of device, bytes, groups. Each is read in one tight loop.

A value that is a plain number within its limits is taken at once; every other one, a text with a unit or a mistake, goes to
the parser of its quantity, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from typing import Any

from partitioner.ir.units import DURATION, SIZE, Quantity, quote
from partitioner.ir.words import hint
from partitioner.spec.entries import Faults, below

LIKE = 0.75
"""How alike, from 0 to 1, a kind that no device has is to one that a device has, when it is taken for a misspelling."""

_TASK = {"name": "text that no other task has", "seconds": "a number, or a number for each kind of device"}
_TASK_MORE = {
    "memory": "bytes that it holds on its device",
    "output": "bytes that it hands to those that follow it",
    "group": "text; tasks of one group share a device",
    "backward": "true for a task of a backward pass",
}
_KEYS = {*_TASK, *_TASK_MORE}
_MISSING = object()

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TaskTable:
    """The columns of ``tasks``.

    Args:
        names: of the tasks.
        seconds: of each task, for each kind of device; infinite where it cannot run.
        memory: bytes that each holds.
        output: bytes that each hands on.
        group: a number for each; tasks of one group have the same.
        backward: whether each is of a backward pass.
    """

    names: list[str]
    seconds: list[list[float]]
    memory: list[float]
    output: list[float]
    group: list[int]
    backward: list[bool]

    def sorted(self, order: Sequence[int]) -> TaskTable:
        """The same tasks in another order."""
        return TaskTable(
            [self.names[task] for task in order],
            [[table[task] for task in order] for table in self.seconds],
            [self.memory[task] for task in order],
            [self.output[task] for task in order],
            [self.group[task] for task in order],
            [self.backward[task] for task in order],
        )


def read_tasks(entries: list[Any], kinds: Sequence[str], faults: Faults) -> TaskTable:
    """The columns of ``entries``. Where there are faults, it may be short of rows.

    Args:
        entries: what stands under ``tasks``.
        kinds: the kinds of device that the machine has.
        faults: where to note what is wrong.

    >>> table = read_tasks([{"name": "a", "seconds": {"gpu": "2ms"}}], ["cpu", "gpu"], Faults("a graph"))
    >>> table.seconds
    [[inf], [0.002]]
    """
    numbers, rows = _rows(entries, faults)
    return TaskTable(
        _names(numbers, rows, faults),
        _seconds(numbers, rows, kinds, faults),
        _sizes(numbers, rows, "memory", faults),
        _sizes(numbers, rows, "output", faults),
        _groups(numbers, rows, faults),
        _flags(numbers, rows, faults),
    )


def _rows(entries: list[Any], faults: Faults) -> tuple[Sequence[int], list[Row]]:
    """The entries that are mappings with a name and seconds, and their numbers; what is wrong with the others is noted."""
    if all(type(entry) is dict and entry.keys() <= _KEYS and "name" in entry and "seconds" in entry for entry in entries):
        return range(len(entries)), entries
    numbers = [
        number
        for number, entry in enumerate(entries)
        if faults.fields(f"tasks[{number}]", entry, _TASK, _TASK_MORE) and "name" in entry and "seconds" in entry
    ]
    return numbers, [entries[number] for number in numbers]


def _names(numbers: Sequence[int], rows: list[Row], faults: Faults) -> list[str]:
    names = [row["name"] for row in rows]
    if all(type(name) is str and name for name in names) and len(set(names)) == len(names):
        return names
    seen: dict[str, int] = {}
    for number, value in zip(numbers, names, strict=True):
        name = faults.text(f"tasks[{number}].name", value, _TASK["name"])
        if name is not None and seen.setdefault(name, number) != number:
            faults.add(f"tasks[{number}].name", f"{quote(name)} is the name of tasks[{seen[name]}]; choose another")
    return list(seen)


def _seconds(numbers: Sequence[int], rows: list[Row], kinds: Sequence[str], faults: Faults) -> list[list[float]]:
    tables: list[list[float]] = [[] for _ in kinds]
    columns = [(kind, table.append) for kind, table in zip(kinds, tables, strict=True)]
    for number, row in zip(numbers, rows, strict=True):
        given = row["seconds"]
        if not isinstance(given, Mapping):
            value = _number(given, DURATION, number, ("seconds",), faults)
            for _, append in columns:
                append(value)
            continue
        found = 0
        for kind, append in columns:
            each = given.get(kind, _MISSING)
            if each is _MISSING:
                append(inf)
            else:
                append(_number(each, DURATION, number, ("seconds", kind), faults))
                found += 1
        if found < len(given) or not found:
            _check_kinds(number, given, kinds, faults)
    return tables


def _check_kinds(number: int, given: Row, kinds: Sequence[str], faults: Faults) -> None:
    """Seconds for kinds that no device has: right in a graph that is made for other machines too, wrong if misspelt."""
    path = f"tasks[{number}].seconds"
    unmet, misspelt = [kind for kind in kinds if kind not in given], False
    for kind, value in given.items():
        if not isinstance(kind, str):
            faults.add(below(path, kind), "is no kind of device; kinds are text")
        elif kind not in kinds:
            _number(value, DURATION, number, ("seconds", kind), faults)
            if any(kind.lower() == each.lower() for each in unmet) or get_close_matches(kind[:200], unmet, 1, LIKE):
                faults.add(below(path, kind), f"no device is of this kind{hint(kind, unmet)}")
                misspelt = True
    if not misspelt and len(unmet) == len(kinds) and kinds:
        offers = ", ".join(quote(kind) for kind in given) or "no kind"
        faults.add(path, f"the task can run nowhere: it has seconds for {offers}, and the devices are {', '.join(kinds)}")


def _sizes(numbers: Sequence[int], rows: list[Row], key: str, faults: Faults) -> list[float]:
    values = [row.get(key) for row in rows]
    return [
        0.0 if value is None else _number(value, SIZE, number, (key,), faults)
        for number, value in zip(numbers, values, strict=True)
    ]


def _number(value: Any, quantity: Quantity, task: int, keys: tuple[str, ...], faults: Faults) -> float:
    """``value`` in the base unit of ``quantity``; the path of a fault is put together only if there is one."""
    if (value.__class__ is float or value.__class__ is int) and 0 <= value <= quantity.limit:
        return float(value)
    path = f"tasks[{task}]"
    for key in keys:
        path = below(path, key)
    return faults.read(path, value, quantity.parse, 0.0)


def _groups(numbers: Sequence[int], rows: list[Row], faults: Faults) -> list[int]:
    """A task without a group has one of its own."""
    known: dict[str, int] = {}
    found: list[int] = []
    for number, row in zip(numbers, rows, strict=True):
        value = row.get("group")
        name = None if value is None else faults.text(f"tasks[{number}].group", value, _TASK_MORE["group"])
        found.append(len(found) if name is None else known.setdefault(name, len(found)))
    return found


def _flags(numbers: Sequence[int], rows: list[Row], faults: Faults) -> list[bool]:
    values = [row.get("backward") for row in rows]
    return [
        value is True or (value is not None and value is not False and faults.flag(f"tasks[{number}].backward", value))
        for number, value in zip(numbers, values, strict=True)
    ]
