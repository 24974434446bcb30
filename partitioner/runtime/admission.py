"""Calls of other sizes than a program was planned for, held against the machine before they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from partitioner.errors import PlacementError

Numbers = tuple[int, ...]


def if_it_fits(
    numbers: Callable[[Sequence[Any]], Numbers], check: Callable[[Numbers], None], only_grow: bool
) -> Callable[[Sequence[Any]], None]:
    """What raises unless a call fits the machine. A graph with open dimensions is planned with numbers of one call.

    Args:
        numbers: the sizes of a call that were left open.
        check: raises a PlacementError if a call of such sizes does not fit.
        only_grow: whether what fits at some sizes fits at all smaller ones.
    """
    fitting: set[Numbers] = set()

    def is_covered(wanted: Numbers) -> bool:
        return any(all(number <= most for number, most in zip(wanted, known, strict=True)) for known in fitting)

    def admit(arguments: Sequence[Any]) -> None:
        wanted = numbers(arguments)
        if wanted in fitting or (only_grow and is_covered(wanted)):
            return
        if only_grow:  # sizes that grow from call to call are checked ahead, up to powers of two
            ahead = tuple(1 << (number - 1).bit_length() for number in wanted)
            with suppress(PlacementError):
                check(ahead)
                fitting.add(ahead)
                return
        check(wanted)
        fitting.add(wanted)

    return admit
