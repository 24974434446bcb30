"""Memory that a search may exceed for a while, at a price: where caps are nearly met, good packings are several moves apart.

    caps 6 and 6      5 1 | 4 2   ->   5 1 4 | 2 (too full)   ->   5 | 4 2, and 1 goes back, or something else
    price             twice as much after ten schedules that were too full, half after ten that were not

Source: Gendreau, Hertz and Laporte, "A tabu search heuristic for the vehicle routing problem", Management Science 40(10), 1994.
"""

from __future__ import annotations

PATIENCE = 10
"""Answers in a row, all too full or none of them, after which the price changes."""

RANGE = 2.0**8
"""By how much a price may differ from the first one, both ways."""


class Price:
    """Of a byte that is not there: it rises while answers are too full, and falls while they are not.

    >>> price = Price(1.0)
    >>> for _ in range(10):
    ...     price.note(full=True)
    >>> price.now
    2.0
    """

    def __init__(self, first: float) -> None:
        self.first = self.now = first
        self._streak = 0

    def note(self, full: bool) -> None:
        """Say whether the answer at which the search is now is too full."""
        self._streak = max(0, self._streak) + 1 if full else min(0, self._streak) - 1
        if abs(self._streak) >= PATIENCE:
            self.now = min(max(self.now * (2.0 if full else 0.5), self.first / RANGE), self.first * RANGE)
            self._streak = 0
