"""Inspection to JSON and back, for other programs.

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
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from partitioner.errors import PartitionerError
from partitioner.report.inspection import Inspection

VERSION = 1


def to_data(inspection: Inspection) -> dict[str, Any]:
    """The document as dictionaries, lists, texts and numbers."""
    return {"version": VERSION, **asdict(inspection)}


def from_data(document: Mapping[str, Any]) -> Inspection:
    """The inspection that a document was made from.

    Raises:
        PartitionerError: it is of another version, or no such document.
    """
    if document.get("version") != VERSION:
        raise PartitionerError(f"version {document.get('version')!r} of an inspection cannot be read; this reads {VERSION}")
    try:
        return _adapter().validate_python({key: value for key, value in document.items() if key != "version"})
    except ValidationError as error:
        raise PartitionerError(f"not an inspection: {error}") from error


def render(inspection: Inspection) -> str:
    """The document as JSON text in ASCII, which ends with a newline."""
    return json.dumps(to_data(inspection), indent=2, allow_nan=False) + "\n"


@cache
def _adapter() -> TypeAdapter[Inspection]:
    return TypeAdapter(Inspection)
