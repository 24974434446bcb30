"""Inspection to JSON, for other programs.

The document holds the fields of an `Inspection` under their own names, as `report.inspection` documents them, and its
version::

    {
      "version": 1,
      "summary": {"model": "Net", "ops": 45, "prediction": {"makespan": 0.03, ...}, "devices": [...], ...},
      "depths": [{"depth": 0, "width": 1, "branches": [{"name": "b0", "ops": [...], "seconds": 0.001, ...}]}, ...],
      "edges": [{"source": "b0", "target": "b1", "kind": "data"}, ...]
    }

Sizes are bytes and times are seconds; what is not known is null. A key may be added within a version; one that goes or
changes its meaning makes a new version.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from partitioner.report.inspection import Inspection

VERSION = 1


def render(inspection: Inspection) -> str:
    """The document as JSON text in ASCII, which ends with a newline."""
    return json.dumps({"version": VERSION, **asdict(inspection)}, indent=2, allow_nan=False) + "\n"
