"""Calls of other sizes than a program was planned for, held against the machine before they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from partitioner.errors import PlacementError


class Admission:
    """Lets a call run if it fits the machine. A graph with open dimensions is planned with numbers of one call.

    Args:
        numbers: the sizes of a call that were left open.
        check: raises a PlacementError if a call of such sizes does not fit.
        only_grow: whether what fits at some sizes fits at all smaller ones.
    """

    def __init__(
        self,
        numbers: Callable[[Sequence[Any]], tuple[int, ...]],
        check: Callable[[tuple[int, ...]], None],
        only_grow: bool,
    ) -> None:
        self.numbers, self.check, self.only_grow = numbers, check, only_grow
        self.fitting: set[tuple[int, ...]] = set()

    def __call__(self, arguments: Sequence[Any]) -> None:
        """Raise unless the call fits."""
        wanted = self.numbers(arguments)
        if wanted in self.fitting or (self.only_grow and any(map(_covers(wanted), self.fitting))):
            return
        if self.only_grow:  # sizes that grow from call to call are checked ahead, up to powers of two
            ahead = tuple(1 << (number - 1).bit_length() for number in wanted)
            with suppress(PlacementError):
                self.check(ahead)
                self.fitting.add(ahead)
                return
        self.check(wanted)
        self.fitting.add(wanted)


def _covers(wanted: tuple[int, ...]) -> Callable[[tuple[int, ...]], bool]:
    return lambda known: all(number <= most for number, most in zip(wanted, known, strict=True))
