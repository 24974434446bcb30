"""Where, in which order and with how many threads each task runs, and when. What a policy answers; nothing later decides again.

placement list: 1.60 ms, at least 1.55 ms (gap 3.2 %)
  t0  lane 0  0.00 - 0.80 ms  ends first on lane 0 of 2
  t1  lane 1  0.05 - 0.80 ms  ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from partitioner.ir.problem import Objective
from partitioner.ir.units import format_duration, format_size


@dataclass(frozen=True, eq=False)
class Assignment:
    """A policy's decision about one problem. Every table is indexed by the task's number.

    Args:
        policy: who decided.
        tasks: their names.
        lanes: the lane of each task. A lane and not only a processor, because "a chain stays on its lane" is a decision of
            placement: a schedule could not take it back without knowing why it was made.
        order: the tasks in the order in which they are issued; it respects every edge.
        threads: of each task, where it is not a lane's share of its processor; 0 where it is. Empty: nobody has said.
        start: predicted seconds from the start of the call.
        end: likewise.
        cost: what the objective makes small: the makespan or the largest load in seconds, or the most bytes of a processor.
        bound: what no answer to the problem can beat, likewise; proven.
        reasons: why each task is where it is, for reports; empty where nobody said.
        note: one reason for all of it, such as why everything is serial.
        objective: what ``cost`` and ``bound`` are.
        turns: the tasks in the order in which the clock was given them, for a search to go on from. Empty: as in ``order``.
        ahead: likewise, by task, what goes over channels before it has its turn: ``(value, channel)``, in order.
    """

    policy: str
    tasks: tuple[str, ...]
    lanes: Sequence[int]
    order: Sequence[int]
    threads: Sequence[int] = ()
    start: Sequence[float] = ()
    end: Sequence[float] = ()
    cost: float = 0.0
    bound: float = 0.0
    reasons: Sequence[str] = ()
    note: str = ""
    objective: Objective = "latency"
    turns: Sequence[int] = ()
    ahead: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)

    @cached_property
    def lane(self) -> Mapping[str, int]:
        """Lane by the task's name."""
        return dict(zip(self.tasks, self.lanes, strict=True))

    @cached_property
    def reason(self) -> Mapping[str, str]:
        """Reason by the task's name."""
        return dict(zip(self.tasks, self.reasons or [self.note] * len(self.tasks), strict=True))

    @property
    def gap(self) -> float:
        """How far the cost is above the bound, as a fraction of the cost: 0 is proven optimal, and 1 tells nothing."""
        return max(0.0, 1.0 - self.bound / self.cost) if self.cost > 0 else 0.0

    def shown(self, cost: float) -> str:
        """A cost or a bound in the unit of the objective."""
        return format_size(cost) if self.objective == "memory" else format_duration(cost)

    def __str__(self) -> str:
        best = f", at least {self.shown(self.bound)} (gap {self.gap:.1%})" if self.bound else ""
        lines = [f"placement {self.policy}: {self.shown(self.cost)}{best}"]
        for number in self.order:
            when = f"{self.start[number] * 1e3:.3g} - {self.end[number] * 1e3:.3g} ms" if self.start else ""
            threads = f"{self.threads[number]} threads" if self.threads and self.threads[number] else ""
            why = self.reasons[number] if self.reasons else ""
            words = (self.tasks[number], f"lane {self.lanes[number]}", when, threads, why)
            lines.append(f"  {'  '.join(word for word in words if word)}")
        return "\n".join(lines)
