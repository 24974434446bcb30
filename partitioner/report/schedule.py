"""The answer to a task graph as text: what it costs, a row for each device and, where tasks are few, who runs when.

diamond: 4 tasks, 4 edges on 2 devices
makespan 5 s, at least 5 s (gap 0.0%); policy list, planned in 210 us

device  kind  tasks  compute   sends  receives  busy  memory   cap
------  ----  -----  -------  ------  --------  ----  ------  ----
gpu0    gpu       3      5 s  500 ms    500 ms  100%     0 B  none
gpu1    gpu       1      2 s  500 ms    500 ms   40%     0 B  none

      0                                                                                            5 s
gpu0  [a================][b=======================================================][d================]
gpu1  .............................[c===================================].............................
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from partitioner.ir.answer import Answer
from partitioner.ir.units import format_duration, format_size
from partitioner.ir.words import printable
from partitioner.planner.timing import Load, loads

MOST_BARS = 40
WIDTH = 96
_COLUMNS = ("device", "kind", "tasks", "compute", "sends", "receives", "busy", "memory", "cap")
_TEXTS = 2


def table(answer: Answer) -> str:
    """The answer for people, as text that ends with a newline."""
    problem = answer.problem
    counted = [_plural(len(problem.tasks), "task"), _plural(len(problem.edges), "edge")]
    rule = ", contiguous" if problem.contiguous else ""
    lines = [f"{printable(problem.name)}: {', '.join(counted)} on {_plural(len(problem.processors), 'device')}{rule}"]
    lines += [str(answer), *([f"note: {answer.assignment.note}"] if answer.assignment.note else []), ""]
    lines += _aligned([_COLUMNS, *_rows(answer)])
    if answer.makespan and len(problem.tasks) <= MOST_BARS:
        lines += ["", *_bars(answer, answer.makespan)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def document(answer: Answer) -> str:
    """The answer for programs, as JSON in ASCII that ends with a newline; `Answer.data` says what it holds."""
    return json.dumps(answer.data(), indent=2, allow_nan=False) + "\n"


SCHEDULES: dict[str, Callable[[Answer], str]] = {"table": table, "json": document}


# Devices --------------------------------------------------------------------------------------------------------------


def _rows(answer: Answer) -> Iterable[tuple[str, ...]]:
    """What each device does; busy: the part of the makespan in which it computes, or its load next to the largest."""
    problem = answer.problem
    homes = [problem.lanes[lane] for lane in answer.assignment.lanes]
    tasks, memory = [0] * len(problem.processors), [0.0] * len(problem.processors)
    for task, home in enumerate(homes):
        tasks[home] += 1
        memory[home] += problem.memory[task] if problem.memory else 0.0
    for number, (device, load) in enumerate(zip(problem.processors, loads(problem, homes), strict=True)):
        yield (
            printable(device.name),
            printable(problem.kinds[device.kind].name),
            str(tasks[number]),
            *(format_duration(each) if each else "-" for each in (load.compute, load.sends, load.receives)),
            f"{_busy(answer, load):.0%}",
            format_size(memory[number]),
            "none" if device.memory == float("inf") else format_size(device.memory),
        )


def _busy(answer: Answer, load: Load) -> float:
    seconds = load.compute if answer.makespan is not None else load.seconds(answer.problem.overlap)
    return seconds / answer.assignment.cost if answer.assignment.cost else 0.0


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            text.ljust(width) if column < _TEXTS else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


# Who runs when --------------------------------------------------------------------------------------------------------


def _bars(answer: Answer, makespan: float) -> list[str]:
    """A line for each device that has tasks, from the start to the makespan; a task of no length leaves no mark."""
    problem, decided = answer.problem, answer.assignment
    names = [printable(device.name) for device in problem.processors]
    margin = max(map(len, names))
    lines = [["."] * WIDTH for _ in names]
    for task in decided.order:
        first = min(WIDTH - 1, round(decided.start[task] / makespan * WIDTH))
        last = min(WIDTH, max(first + 1, round(decided.end[task] / makespan * WIDTH)))
        if decided.end[task] > decided.start[task]:
            lines[problem.lanes[decided.lanes[task]]][first:last] = _bar(printable(problem.tasks[task]), last - first)
    scale = f"0{format_duration(makespan).rjust(WIDTH - 1)}"
    used = {problem.lanes[lane] for lane in decided.lanes}
    drawn = (f"{name.ljust(margin)}  {''.join(lines[number])}" for number, name in enumerate(names) if number in used)
    return [f"{'':{margin}}  {scale}", *drawn]


def _bar(name: str, width: int) -> str:
    return "#" * width if width <= _TEXTS else f"[{name[: width - 2].ljust(width - 2, '=')}]"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
