"""Spans on lanes: what runs where and when, as it is predicted.

timeline 1.20 ms
  cpu/0  0.00 t0 0.80  0.85 t2 1.20
  cpu/1  0.05 t1 0.75
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """One instruction's time on its lane, in seconds from the start of the call."""

    lane: int
    label: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What ran where and when.

    Args:
        lanes: names, by lane number.
        spans: in order of their start.
    """

    lanes: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return max((span.end for span in self.spans), default=0.0)

    def busy(self, lane: int) -> float:
        """Seconds in which the lane had something to do."""
        return sum(span.end - span.start for span in self.spans if span.lane == lane)

    def __str__(self) -> str:
        lines = [f"timeline {self.makespan * 1e3:.2f} ms"]
        for number, name in enumerate(self.lanes):
            spans = (span for span in self.spans if span.lane == number)
            row = "  ".join(f"{span.start * 1e3:.2f} {span.label} {span.end * 1e3:.2f}" for span in spans)
            lines.append(f"  {name}  {row}".rstrip())
        return "\n".join(lines)
