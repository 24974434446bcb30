"""What is taken from an iterator while its model is traced is given once more: Python can put none back to where it was."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from partitioner.errors import InputError


class Taken:
    """Stands for an iterator, and notes what is taken from it."""

    __slots__ = ("items", "iterator")

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator, self.items = iterator, list[Any]()

    def __iter__(self) -> Taken:
        return self

    def __next__(self) -> Any:
        item = next(self.iterator)
        self.items.append(item)
        return item

    def __getattr__(self, name: str) -> Any:
        getattr(self.iterator, name)
        raise InputError(
            f"forward uses {name!r} of a {type(self.iterator).__name__} that the model holds, which cannot be put back where "
            "it was; partition the model without example inputs"
        )

    def whole(self) -> Iterator[Any]:
        """The iterator, with what was taken from it."""
        return chain(self.items, self.iterator) if self.items else self.iterator


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of Python's own, a generator among them, whose place is no attribute."""
    return type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator)
