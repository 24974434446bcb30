"""A gradient scaler over ranks: it changes nothing where nothing overflows, and where one stage overflows all ranks skip."""

from __future__ import annotations

import json
from pathlib import Path

from jobs.torchrun import start

JOB = Path(__file__).parent / "jobs" / "scaler.py"


def test_all_ranks_skip_together(tmp_path: Path) -> None:
    """The overflow is on the first rank alone; with torch's own scaler the second would step."""
    out = tmp_path / "out.json"
    start(2, JOB, out)
    for rank in json.loads(out.read_text()):
        assert rank["apart"] == 0.0 and rank["losses"] == 0.0, "a power of two scales without rounding"
        assert rank["skipped"] == [0, 1]
