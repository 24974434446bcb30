"""Inspection to text: one table of branches by depth, one of times, one of devices, and what to know besides.

On a terminal, names that do not fit are cut at an ellipsis, and counts of parameters are shown from 120 columns on. In a file
or a pipe each branch is one line with everything on it.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from partitioner.ir.units import format_count, format_duration, format_size
from partitioner.ir.words import printable
from partitioner.report.inspection import Branch, Depth, DeviceLoad, Inspection, LaneLoad, Summary

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_PLAIN_BOX = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_UNLIMITED = 100_000
_WIDE = 120
_FEW = 3
_BAR, _BLOCK, _SHADE = 10, "\u2588", "\u2591"
_LEGEND = "* on the critical path; x2: two branches that may run at the same time"


@dataclass(frozen=True)
class Screen:
    """A terminal, or what takes its place.

    Args:
        width: columns to fit into, by leaving out names that JSON has in full; ``None`` for a file or a pipe, where nothing
            is left out and everything is plain ASCII but for names.
        colour: whether it shows colours.
    """

    width: int | None = None
    colour: bool = False


PIPE = Screen()


def render(inspection: Inspection, screen: Screen = PIPE) -> str:
    """The inspection as tables.

    Args:
        inspection: what to show.
        screen: where it will be read.

    Returns:
        Text that ends with a newline, with ANSI codes only if the screen shows colours.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=screen.width or _UNLIMITED,
        force_terminal=screen.colour,
        color_system="standard" if screen.colour else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    writer = _Writer(inspection, screen)
    console.print(Group(*writer.parts()))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


class _Writer:
    """The parts of one report."""

    def __init__(self, inspection: Inspection, screen: Screen) -> None:
        self.inspection, self.screen, self.summary = inspection, screen, inspection.summary
        self.shapes_known = self.summary.prediction is not None
        self.counts = screen.width is None or screen.width >= _WIDE
        names = [lane.name for device in self.summary.devices for lane in device.lanes]
        self.colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}

    def parts(self) -> Iterator[RenderableType]:
        yield headline(self.summary)
        yield Text(self.summary.verdict, style="bold")
        yield from self.tables()
        if self.summary.notes:
            yield Text()
        yield from (Text(f"note: {note}") for note in self.summary.notes)

    def tables(self) -> Iterator[RenderableType]:
        for table in (self.branch_table(), self.time_table(), self.device_table(), self.transfer_table(), self.reasons()):
            if table.row_count:
                yield Text()
                yield table

    def table(self, *columns: str, right: str = "", title: str = "") -> Table:
        """An empty table; ``right`` are the columns of numbers. Only names give way where there is little room."""
        table = Table(
            box=_PLAIN_BOX if self.screen.width is None else SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            header_style="bold",
            caption=title or None,
            caption_justify="left",
        )
        for name in columns:
            justify: Literal["left", "right"] = "right" if name in right.split() else "left"
            table.add_column(name, justify=justify, no_wrap=name not in ("ops", "tasks", "remark"))
        return table

    def branch_table(self) -> Table:
        """A row for each branch, those of one depth together."""
        table = self.table(
            *("depth", "branch", *(("params",) if self.counts else ()), "size"),
            *(("FLOP", "output", "time") if self.shapes_known else ()),
            *("lane", "task", "ops"),
            right="params size FLOP output time",
            title=_LEGEND if any(branch.critical for branch in self.inspection.branches) else "",
        )
        for depth in self.inspection.depths:
            for number, branch in enumerate(depth.branches):
                table.add_row(self.label(depth) if number == 0 else "", *self.branch_row(branch))
        return table

    def label(self, depth: Depth) -> str:
        return f"{depth.depth} x{depth.width}" if depth.width > 1 else str(depth.depth)

    def path(self, branch: Branch) -> str:
        """The module path; a long one keeps its end, which tells it from its neighbours."""
        path = branch.path or "(root)"
        most = _UNLIMITED if self.screen.width is None else max(8, self.screen.width // 5)
        return path if len(path) <= most else f"\u2026{path[1 - most :]}"

    def branch_row(self, branch: Branch) -> Iterator[Text]:
        short = self.screen.width is not None
        yield _cut(self.path(branch))
        if self.counts:
            yield Text(_count(branch.parameters))
        yield Text(format_size(branch.parameter_bytes) if branch.parameter_bytes else "-")
        if self.shapes_known:
            yield Text(_count(branch.flops))
            yield Text(_size(branch.output_bytes))
            yield Text(f"{_time(branch.seconds)}{'*' if branch.critical else ' '}", style="bold" if branch.critical else "")
        yield self.lanes(branch.lanes)
        yield Text(_some(branch.tasks) if short else " ".join(branch.tasks))
        yield _cut(" ".join(branch.short_ops if short else branch.ops), style="dim")

    def lanes(self, names: tuple[str, ...]) -> Text:
        shown = names if self.screen.width is None or len(names) <= _FEW else (names[0], "..", names[-1])
        return Text(" ").join(Text(name, style=self.colour.get(name, "")) for name in shown)

    def time_table(self) -> Table:
        """What a call is expected to take, beside one device and what bounds it; no rows where no shapes are known."""
        found, first = self.summary.prediction, self.summary.devices[0]
        table = self.table("one call", "expected", "speedup", "remark", right="expected speedup")
        if found is None:
            return table
        limits = {found.issue: "the host, which issues every op", found.critical_path: "the critical path"}
        limit = limits.get(found.bound, "the work, shared out evenly")
        cores = ", with all of its cores" if first.torch_device == "cpu" else ""
        rows = (
            ("one device", found.serial, 1.0, f"the whole model on {first.name} alone{cores}"),
            ("this plan", found.makespan, found.plan_speedup, f"{found.gap:.0%} above the bound"),
            ("bound", found.bound, found.graph_speedup, f"no plan is faster; set by {limit}"),
            ("critical path", found.critical_path, None, "the longest chain of ops that wait for each other"),
            ("work", found.work, None, "all ops one after the other, at the speed of one lane"),
            *([("issue", found.issue, None, "the host issues all ops, one after the other")] if found.issue else []),
        )
        for name, seconds, ratio, remark in rows:
            cells = (name, format_duration(seconds), "" if ratio is None else f"{ratio:.2f}x", Text(remark))
            table.add_row(*cells, style="bold" if name == "this plan" else "")
        return table

    def device_table(self) -> Table:
        columns = ("device", "parameters", "values", "cap", "headroom", "lane", "tasks", "busy")
        table = self.table(*columns, right="parameters values cap headroom tasks busy")
        for device in self.summary.devices:
            for number, lane in enumerate(device.lanes):
                cells = [Text(cell) for cell in (device_cells(device) if number == 0 else [""] * 5)]
                table.add_row(*cells, self.lanes((lane.name,)), str(lane.tasks), self.busy(lane))
        return table

    def busy(self, lane: LaneLoad) -> Text:
        if lane.busy is None or self.screen.width is None:
            return Text("-" if lane.busy is None else f"{lane.busy:.0%}")
        filled = round(lane.busy * _BAR)
        return Text.assemble(
            (_BLOCK * filled, self.colour[lane.name]), (_SHADE * (_BAR - filled), "bright_black"), f" {lane.busy:4.0%}"
        )

    def transfer_table(self) -> Table:
        table = self.table("transfers", "tensors", "size", right="tensors size")
        for moved in self.summary.transfers:
            table.add_row(Text(f"{moved.source} -> {moved.target}"), str(moved.count), _size(moved.bytes))
        return table

    def reasons(self) -> Table:
        """Why tasks are where they are: each reason once, and none if there is but one, which the verdict says."""
        tasks: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for branch in self.inspection.branches:
            for task, reason in zip(branch.tasks, branch.reasons, strict=True):
                tasks[reason][task] = None
        table = self.table("why there", "tasks")
        for reason, found in tasks.items() if len(tasks) > 1 else ():
            table.add_row(Text(reason), Text(" ".join(found)))
        return table


def headline(summary: Summary) -> Text:
    """The model in one line."""
    counts = [_plural(summary.ops, "op"), _plural(summary.branches, "branch"), _plural(summary.tasks, "task")]
    shape = f"depth {summary.depth}, width {summary.width}"
    size = (
        f"{_count(summary.parameters)} parameters ({format_size(summary.parameter_bytes)})"
        if summary.parameters
        else "no state"
    )
    flops = "" if summary.flops is None else f", {format_count(summary.flops)}"
    made = f"{summary.frontend}, effects {summary.effects}, policy {summary.policy}"
    return Text(f"{summary.model}: {', '.join(counts)}; {shape}; {size}{flops}\n{made}")


def device_cells(device: DeviceLoad) -> list[str]:
    """Name, parameters, peak, cap and headroom of a device."""
    name = device.name if device.name == device.torch_device else f"{device.name} ({device.torch_device})"
    cap = "none" if device.cap is None else format_size(device.cap)
    return [name, format_size(device.parameter_bytes), _size(device.peak_bytes), cap, _size(device.headroom)]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('h') else 's'}"


def _some(names: tuple[str, ...]) -> str:
    return " ".join(names) if len(names) <= _FEW else f"{names[0]}..{names[-1]}"


def _count(count: int | None) -> str:
    """A number with a prefix and no unit."""
    return "-" if not count else format_count(count, "").replace(" ", "")


def _size(size: int | None) -> str:
    return "-" if size is None else format_size(size)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _cut(text: str, style: str = "") -> Text:
    """A cell that ends in an ellipsis rather than take a second line."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")
