"""What a report is written on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Screen:
    """A terminal, or what takes its place.

    Args:
        width: columns to fit into, by leaving out names that JSON has in full; ``None`` for a file or a pipe, where nothing
            is left out and everything is plain ASCII but for names.
        colour: whether it shows colours.
    """

    width: int | None = None
    colour: bool = False


PIPE = Screen()
