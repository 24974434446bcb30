"""Inspection to DOT and Mermaid: branches as boxes in the colour of their lane, side by side where they have one depth.

Solid arrows carry data; dashed ones keep the order of ops that touch one storage or draw from one random generator.
"""

from __future__ import annotations

from collections.abc import Iterator

from partitioner.ir.units import format_duration, format_size
from partitioner.report.inspection import Branch, Inspection

PALETTE = ("#a6cee3", "#fdbf6f", "#b2df8a", "#cab2d6", "#fb9a99", "#ffff99", "#d9d9d9", "#ccebc5")
"""Fills light enough for black text; lanes beyond the last take them again. After ColorBrewer, https://colorbrewer2.org."""

_MOST_OPS = 4


def dot(inspection: Inspection) -> str:
    """The branch DAG in Graphviz's language: ``partitioner inspect model.py --format dot | dot -Tsvg``."""
    colours = _colours(inspection)
    lines = [f"digraph {_dot_text(inspection.summary.model)} {{"]
    lines.append('  node [shape=box, style="rounded,filled", fontname="sans-serif"];')
    for branch in inspection.branches:
        label = _dot_text("\n".join(_label(branch)))
        lines.append(f"  {branch.name} [label={label}, fillcolor={_dot_text(_fill(branch, colours))}];")
    for depth in inspection.depths:
        members = "; ".join(branch.name for branch in depth.branches)
        lines.append(f"  {{ rank=same; {members}; }}  // depth {depth.depth}")
    for edge in inspection.edges:
        style = "" if edge.kind == "data" else f" [style=dashed, tooltip={_dot_text(edge.kind)}]"
        lines.append(f"  {edge.source} -> {edge.target}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(inspection: Inspection) -> str:
    """The branch DAG as a Mermaid flowchart, which Markdown viewers draw."""
    colours = _colours(inspection)
    lines = ["flowchart TD"]
    for branch in inspection.branches:
        lines.append(f'  {branch.name}("{"<br>".join(map(_mermaid_text, _label(branch)))}")')
    for edge in inspection.edges:
        lines.append(f"  {edge.source} {'-->' if edge.kind == 'data' else '-.->'} {edge.target}")
    for number, (lane, colour) in enumerate(colours.items()):
        members = ",".join(branch.name for branch in inspection.branches if branch.lanes[:1] == (lane,))
        if members:
            lines.append(f"  classDef lane{number} fill:{colour},stroke:#666,color:#000")
            lines.append(f"  class {members} lane{number}")
    return "\n".join(lines) + "\n"


def _label(branch: Branch) -> Iterator[str]:
    """What a box says: where its ops come from, what they are, where they run."""
    yield branch.path or "(root)"
    ops = branch.short_ops
    yield from ops if len(ops) <= _MOST_OPS else (*ops[: _MOST_OPS - 1], f"... {ops[-1]}")
    size = format_size(branch.parameter_bytes) if branch.parameter_bytes else ""
    time = "" if branch.seconds is None else format_duration(branch.seconds)
    yield ", ".join(part for part in (" ".join(branch.lanes), time, size) if part)


def _colours(inspection: Inspection) -> dict[str, str]:
    names = [lane.name for device in inspection.summary.devices for lane in device.lanes]
    return {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(names)}


def _fill(branch: Branch, colours: dict[str, str]) -> str:
    """A chain that is cut shows each of its lanes; Graphviz draws a colour list as stripes of a gradient."""
    return ":".join(dict.fromkeys(colours[lane] for lane in branch.lanes[:2]))


def _dot_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _mermaid_text(text: str) -> str:
    """Mermaid reads HTML entities, written with # in place of &, and much else as its own syntax."""
    return "".join(letter if letter.isalnum() or letter in " ._/:,()-+" else f"#{ord(letter)};" for letter in text)
