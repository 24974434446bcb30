"""Inspection to text, for people and for programs. A new format is a file of its own and a line here."""

from __future__ import annotations

from collections.abc import Callable

from partitioner.report import data, graphs, text
from partitioner.report.inspection import Inspection
from partitioner.report.text import PIPE, Screen

Format = Callable[[Inspection, Screen], str]

FORMATS: dict[str, Format] = {
    "table": text.render,
    "json": lambda inspection, _screen: data.render(inspection),
    "dot": lambda inspection, _screen: graphs.dot(inspection),
    "mermaid": lambda inspection, _screen: graphs.mermaid(inspection),
}

__all__ = ["FORMATS", "PIPE", "Format", "Screen"]
