"""Inspection to text: one table of branches by depth, one of times, one of devices, and what to know besides.

On a terminal, names that do not fit end in an ellipsis. In a file or a pipe each branch is one line with everything on it.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from partitioner.inspection import Branch, Depth, DeviceLoad, Inspection, Summary
from partitioner.report.screen import PIPE, Screen
from partitioner.units import format_count, format_duration, format_size

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_PLAIN_BOX = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_UNLIMITED = 100_000
_FEW = 3


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
        names = [lane.name for device in self.summary.devices for lane in device.lanes]
        self.colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}

    def parts(self) -> Iterator[RenderableType]:
        yield headline(self.summary)
        yield Text(self.summary.verdict, style="bold")
        yield self.branch_table()
        if any(branch.critical for branch in self.inspection.branches):
            yield Text(" * on the critical path\n", style="dim")
        if self.summary.prediction is not None:
            yield self.time_table()
        yield self.device_table()
        if self.summary.transfers:
            yield self.transfer_table()
        yield from self.reasons()
        yield from (Padding(Text(f"note: {note}"), (0, 0, 0, 1)) for note in self.summary.notes)

    def table(self, *columns: str, right: str = "") -> Table:
        """An empty table; ``right`` are the columns of numbers."""
        plain = self.screen.width is None
        table = Table(box=_PLAIN_BOX if plain else SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for name in columns:
            flexible = name in ("branch", "ops")
            table.add_column(
                name,
                justify="right" if name in right.split() else "left",
                no_wrap=flexible or plain,
                overflow="ellipsis" if flexible else "fold",
            )
        return table

    def branch_table(self) -> Table:
        table = self.table(
            *("depth", "branch", "ops", "params", "size", "FLOP", "output", "time", "lane", "task"),
            right="params size FLOP output time",
        )
        for depth in self.inspection.depths:
            for number, branch in enumerate(depth.branches):
                table.add_row(self.label(depth) if number == 0 else "", *self.branch_row(branch))
        return table

    def label(self, depth: Depth) -> str:
        return f"{depth.depth} x{depth.width}" if depth.width > 1 else str(depth.depth)

    def branch_row(self, branch: Branch) -> Iterator[Text]:
        short = self.screen.width is not None
        yield Text(branch.path or "(root)")
        yield Text(" ".join(short_names(branch) if short else branch.ops), style="dim")
        yield Text(_count(branch.parameters))
        yield Text(format_size(branch.parameter_bytes) if branch.parameter_bytes else "-")
        yield Text(_count(branch.flops))
        yield Text(_size(branch.output_bytes))
        yield Text(f"{_time(branch.seconds)}{'*' if branch.critical else ' '}", style="bold" if branch.critical else "")
        yield self.lanes(branch.lanes)
        yield Text(_some(branch.tasks) if short else " ".join(branch.tasks))

    def lanes(self, names: tuple[str, ...]) -> Text:
        shown = names if self.screen.width is None or len(names) <= _FEW else (names[0], "..", names[-1])
        return Text(" ").join(Text(name, style=self.colour.get(name, "")) for name in shown)

    def time_table(self) -> Table:
        found = self.summary.prediction
        assert found is not None
        first = self.summary.devices[0].name
        lanes = sum(len(device.lanes) for device in self.summary.devices)
        table = self.table("expected time", "seconds", "speedup", "", right="seconds speedup")
        table.columns[1].header = ""
        table.add_row(
            "one device", format_duration(found.serial), "1.00x", f"the model on {first} alone, with all of its cores"
        )
        gap = f"{found.gap:.0%} above the bound"
        table.add_row("this plan", format_duration(found.makespan), _times(found.plan_speedup), gap, style="bold")
        why = "the critical path" if found.bound == found.critical_path else "the work, shared out evenly"
        table.add_row("bound", format_duration(found.bound), _times(found.graph_speedup), f"no plan is faster: {why}")
        table.add_row("critical path", format_duration(found.critical_path), "", "the longest chain of ops")
        table.add_row("work", format_duration(found.work), "", f"all ops, one lane's speed; there are {lanes} lanes")
        return table

    def device_table(self) -> Table:
        table = self.table(
            *("device", "parameters", "peak values", "cap", "headroom", "lane", "tasks", "busy"),
            right="parameters cap headroom tasks busy",
        )
        table.columns[2].justify = "right"
        for device in self.summary.devices:
            for number, lane in enumerate(device.lanes):
                busy = "-" if lane.busy is None else f"{lane.busy:.0%}"
                cells = [Text(cell) for cell in (device_cells(device) if number == 0 else [""] * 5)]
                table.add_row(*cells, self.lanes((lane.name,)), str(lane.tasks), busy)
        return table

    def transfer_table(self) -> Table:
        table = self.table("transfers", "tensors", "size", right="tensors size")
        for moved in self.summary.transfers:
            table.add_row(Text(f"{moved.source} -> {moved.target}"), str(moved.count), _size(moved.bytes))
        return table

    def reasons(self) -> Iterator[RenderableType]:
        """Why tasks are where they are: each reason once, unless the verdict says it already."""
        tasks: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for branch in self.inspection.branches:
            for task, reason in zip(branch.tasks, branch.reasons, strict=True):
                tasks[reason][task] = None
        if len(tasks) > 1:
            table = self.table("why there", "tasks")
            for reason, found in tasks.items():
                table.add_row(Text(reason), Text(" ".join(found)))
            yield table


def headline(summary: Summary) -> Text:
    """The model in one line."""
    counts = [_plural(summary.ops, "op"), _plural(summary.branches, "branch"), _plural(summary.tasks, "task")]
    shape = f"depth {summary.depth}, width {summary.width}"
    size = f"{_count(summary.parameters)} parameters ({format_size(summary.parameter_bytes)})"
    flops = "" if summary.flops is None else f", {format_count(summary.flops)}"
    made = f"{summary.frontend}, effects {summary.effects}, policy {summary.policy}"
    return Text(f"{summary.model}: {', '.join(counts)}; {shape}; {size}{flops}\n{made}")


def device_cells(device: DeviceLoad) -> list[str]:
    """Name, parameters, peak, cap and headroom of a device."""
    name = device.name if device.name == device.torch_device else f"{device.name} ({device.torch_device})"
    cap = "none" if device.cap is None else format_size(device.cap)
    return [name, format_size(device.parameter_bytes), _size(device.peak_bytes), cap, _size(device.headroom)]


def short_names(branch: Branch) -> list[str]:
    """The names of a branch's ops without what its module path says already."""
    prefix = f"{branch.path.replace('.', '_')}_"
    return [name.removeprefix(prefix) for name in branch.ops]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('h') else 's'}"


def _some(names: tuple[str, ...]) -> str:
    return " ".join(names) if len(names) <= _FEW else f"{names[0]} .. {names[-1]}"


def _count(count: int | None) -> str:
    """A number with a prefix and no unit."""
    return "-" if not count else format_count(count, "").replace(" ", "")


def _size(size: int | None) -> str:
    return "-" if size is None else format_size(size)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"
