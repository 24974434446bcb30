"""Documents of a million entries, checked by hand: every fault at once, each with its path, and no model for each entry.

    "net.json": 3 faults
      tasks[7].seconds: -1 is not a duration; write seconds or a number with ns, us, ms, s, for example "10us"
      tasks[9].nmae: is no key here; did you mean "name"?
      edges[4]: "conv_1" is no task; did you mean "conv1"?

`spec/faults.py` does the same for what pydantic reads. This file knows no torch, so a plan of a task graph starts at once.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TypeVar

from partitioner.errors import SpecError
from partitioner.ir.units import quote
from partitioner.ir.words import hint

MOST_FAULTS = 50

Answer = TypeVar("Answer")


class Faults:
    """What is wrong with one document, gathered until :meth:`check`.

    Args:
        where: the document, as errors name it.

    >>> faults = Faults("the machine")
    >>> faults.add("devices[0].name", "is missing")
    >>> faults.check()
    Traceback (most recent call last):
    partitioner.errors.SpecError: the machine: 1 fault
      devices[0].name: is missing
    """

    def __init__(self, where: str) -> None:
        self.where, self.count = where, 0
        self.lines: list[str] = []

    def add(self, path: str, text: str) -> None:
        """Note one fault."""
        self.count += 1
        if self.count <= MOST_FAULTS:
            self.lines.append(f"{path}: {text}")

    def read(self, path: str, value: object, parse: Callable[[object], Answer], instead: Answer) -> Answer:
        """``value`` as ``parse`` reads it; ``instead`` and a fault if it cannot."""
        try:
            return parse(_plain(value))
        except SpecError as error:
            self.add(path, str(error))
            return instead

    def text(self, path: str, value: object, what: str) -> str | None:
        """``value`` if it is a text of at least one letter; a fault if not."""
        if isinstance(value, str) and value:
            return value
        self.add(path, "should not be empty" if value == "" else f"{quote(value)} should be text in quotes: {what}")
        return None

    def flag(self, path: str, value: object) -> bool:
        """``value`` if it is a truth value; a fault if not."""
        if not isinstance(value, bool):
            self.add(path, f"{quote(value)} should be true or false")
        return value is True

    def entries(self, path: str, value: object) -> list[object]:
        """``value`` as a list; empty and a fault if it is none."""
        if isinstance(value, list | tuple):
            return list(value)
        self.add(path, f"{quote(value)} should be a list")
        return []

    def fields(self, path: str, value: object, required: Mapping[str, str], optional: Mapping[str, str]) -> bool:
        """Whether ``value`` is a mapping; other keys than these, and missing ones, are faults. Keys: what each means."""
        if not isinstance(value, Mapping):
            self.add(path, f"{quote(value)} should be a mapping with {', '.join(required)}")
            return False
        known = {**required, **optional}
        for key in value:
            if key not in known:
                self.add(below(path, key), f"is no key here{hint(key, known)}")
        for key, meaning in required.items():
            if key not in value:
                self.add(below(path, key), f"is missing ({key}: {meaning})")
        return True

    def hint(self, word: object, words: Collection[str]) -> str:
        """:func:`hint`, as long as it is shown: among a million words it takes a tenth of a second."""
        return hint(word, words) if self.count < MOST_FAULTS else ""

    def check(self) -> None:
        """Raise what has been gathered.

        Raises:
            SpecError: there is a fault.
        """
        if self.count:
            raise listed(self.where, self.lines, self.count)


def listed(where: str, lines: Sequence[str], count: int = 0) -> SpecError:
    """The error that lists the first faults of a document, of which there may be more than are told."""
    count = count or len(lines)
    more = [f"... and {count - MOST_FAULTS} more"] if count > MOST_FAULTS else []
    return SpecError("\n  ".join([f"{where}: {count} fault{'s' if count > 1 else ''}", *lines[:MOST_FAULTS], *more]))


@contextmanager
def collector_off() -> Iterator[None]:
    """No search for reference cycles meanwhile: reading makes millions of objects and no cycle, and takes a third of the time.

    >>> with collector_off():
    ...     gc.isenabled()
    False
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def below(path: str, key: object) -> str:
    """The path of what stands under ``key``; a key that is no word is quoted, so that a fault stays one line.

    >>> below("tasks[0].seconds", "cpu"), below("", "tasks"), below("a", "b c")
    ('tasks[0].seconds.cpu', 'tasks', 'a["b c"]')
    """
    word = isinstance(key, str) and re.fullmatch(r"\w{1,60}", key)
    return f"{path}.{key}".removeprefix(".") if word else f"{path}[{quote(key)}]"


def _plain(value: object) -> object:
    """A number of numpy as one of Python; anything else as it is."""
    return float(value) if isinstance(value, Real) and not isinstance(value, int | float) else value
