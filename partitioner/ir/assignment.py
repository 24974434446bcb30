"""Where each task runs and how urgent it is. What a policy decides, and nothing else.

placement by_level
  t0  cpu/0  rank 3  lane 0 was free first
  t1  cpu/1  rank 3  ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Assignment:
    """A policy's decision.

    Args:
        policy: who decided.
        lane: lane number of each task. A lane and not only a device, because "a chain stays on its lane" is a decision of
            placement: the schedule could not take it back without knowing why it was made.
        priority: of each task; of two that could start, the higher goes first.
        reason: why each task is where it is, for reports.
        makespan: when the policy expects the last task to end, in seconds; 0 if it did not reckon.
    """

    policy: str
    lane: Mapping[str, int]
    priority: Mapping[str, float]
    reason: Mapping[str, str]
    makespan: float = 0.0

    def __str__(self) -> str:
        lines = [f"placement {self.policy}"]
        for task, lane in self.lane.items():
            lines.append(f"  {task}  lane {lane}  rank {self.priority[task]:.3g}  {self.reason.get(task, '')}".rstrip())
        return "\n".join(lines)
