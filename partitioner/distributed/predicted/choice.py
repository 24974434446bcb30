"""What ``mesh: auto`` has looked at, as a table for people: the best of each mesh, and why it was not taken.

auto: 8 ranks, 61 ways to work together looked at
  mesh                               schedule   microbatches  wrap   step     bubble  memory
  data 4 x pipeline 2 x tensor 1     1f1b       8             ddp    1.2 s    11%     10 GiB    taken
  data 8 x pipeline 1 x tensor 1     1f1b       4             ddp    1.5 s    0%      18 GiB    25% slower
  data 1 x pipeline 8 x tensor 1     gpipe      64            ddp    >= 1.3 s                    slower, whatever its schedule
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partitioner.ir.units import format_duration, format_size
from partitioner.spec.distributed import DistributedSpec

SHOWN = 8
"""Rows of the table."""


@dataclass(frozen=True)
class Row:
    """One mesh, at its best.

    Args:
        asked: mesh, schedule, microbatches, wrapping, recomputation.
        step: predicted seconds; where ``bubble`` is ``None``, what they are at least.
        bubble: the predicted part of a step in which ranks wait; ``None`` if the way was not looked at further.
        memory: bytes of the fullest rank; 0 if the way was not looked at further.
        why: why it was taken, or was not.
    """

    asked: DistributedSpec
    step: float
    bubble: float | None
    memory: int
    why: str

    def data(self) -> dict[str, Any]:
        """The same as dictionaries, texts and numbers."""
        asked = self.asked.model_dump(include={"schedule", "stages_per_rank", "microbatches", "wrap", "recompute"})
        figures = {"step_seconds": self.step, "bubble": self.bubble, "memory": self.memory, "why": self.why}
        return {"mesh": self.asked.mesh.model_dump(exclude={"auto"}), **asked, **figures}

    @property
    def cells(self) -> tuple[str, ...]:
        """What it shows, column by column."""
        several = f", {self.asked.stages_per_rank} stages a rank" if self.asked.stages_per_rank > 1 else ""
        again = "" if self.asked.recompute == "none" else f", {self.asked.recompute} again"
        seen = self.bubble is not None
        return (
            str(self.asked.mesh),
            f"{self.asked.schedule}{several}{again}",
            str(self.asked.microbatches),
            self.asked.wrap if self.asked.mesh.data > 1 else "",
            f"{'' if seen else '>= '}{format_duration(self.step)}",
            f"{self.bubble:.0%}" if self.bubble is not None else "",
            format_size(self.memory) if seen else "",
            self.why,
        )


@dataclass(frozen=True)
class Choice:
    """How a mesh was chosen.

    Args:
        ranks: for how many.
        ways: how many ways to work together there were.
        rows: the best of each mesh, the one that was taken first.
    """

    ranks: int
    ways: int
    rows: tuple[Row, ...]

    def data(self) -> dict[str, Any]:
        """The same as dictionaries, texts and numbers."""
        return {"ranks": self.ranks, "ways": self.ways, "meshes": [row.data() for row in self.rows]}

    def __str__(self) -> str:
        more = [f"  ... and {len(self.rows) - SHOWN} meshes more"] if len(self.rows) > SHOWN else []
        return "\n".join([f"auto: {self.ranks} ranks, {self.ways} ways to work together", *table(self.rows[:SHOWN]), *more])


def table(rows: Sequence[Row]) -> list[str]:
    """Rows in columns, below their names."""
    head = ("mesh", "schedule", "microbatches", "wrap", "step", "bubble", "memory", "")
    cells = [head, *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [f"  {'  '.join(map(str.ljust, line, widths))}".rstrip() for line in cells]
