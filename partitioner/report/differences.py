"""What changed from one saved plan to another, as lines of text: machine, model, where tasks went, order, predictions.

devices gpu0: 2 lanes -> 1 lane
program forward(x float32[2, 4])
  3 tasks moved
    gpu0/1 -> gpu1/0: t3 (left_linear ...), t4 (cat)
  order: t7 is issued before t5
  makespan: 1.2 ms -> 1 ms
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from partitioner.ir.differ import differences as graph_differences
from partitioner.ir.saved import SavedPlan, SavedProgram, SavedTask
from partitioner.ir.units import format_duration
from partitioner.ir.words import first_lines

SIDES = ("in the first plan", "in the second")
MOST = 10
"""Lines of one kind that are written out; of the others, how many there are."""


def differences(one: SavedPlan, other: SavedPlan) -> list[str]:
    """In what two plans differ, first things first; nothing if they are equal.

    >>> plan = SavedPlan(schema_version=1, model="Towers", devices=(), programs=())
    >>> differences(plan, plan.model_copy(update={"model": "Tower"}))
    ['model: Towers -> Tower']
    """
    lines = [] if one.model == other.model else [f"model: {one.model} -> {other.model}"]
    devices = [{each.name: dict(each) for each in plan.devices} for plan in (one, other)]
    links = [{f"{link.source} -> {link.target}": vars(link) for link in plan.machine().links} for plan in (one, other)]
    lines += _few(_rows("device", *devices))
    lines += _few(_rows("link", *links))
    for mine, theirs in _paired(one.programs, other.programs):
        if mine is None or theirs is None:
            side = SIDES[mine is None]
            lines.append(f"program {_title(mine or theirs)} is only {side}")
        elif found := _of_program(mine, theirs):
            lines += [f"program {_title(mine)}", *(f"  {line}" for line in found)]
    return lines


def _rows(what: str, one: Mapping[str, Mapping[str, object]], other: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """Differences between rows of figures, by name."""
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            yield f"{what} {name} is only {SIDES[name not in one]}"
            continue
        changed = [f"{key} {mine} -> {other[name][key]}" for key, mine in one[name].items() if mine != other[name][key]]
        if changed:
            yield f"{what} {name}: {', '.join(changed)}"


def _paired(
    one: Sequence[SavedProgram], other: Sequence[SavedProgram]
) -> Iterator[tuple[SavedProgram | None, SavedProgram | None]]:
    """Programs of equal graphs, then the others in the order in which they stand."""
    known = {program.fingerprint: program for program in other}
    mine = {program.fingerprint for program in one}
    rest = iter([program for program in other if program.fingerprint not in mine])
    for program in one:
        yield program, known.get(program.fingerprint) or next(rest, None)
    yield from ((None, program) for program in rest)


def _title(program: SavedProgram | None) -> str:
    assert program is not None
    return f"({', '.join(f'{name} {value}'.rstrip() for name, value in program.inputs.items())})"


def _of_program(one: SavedProgram, other: SavedProgram) -> list[str]:
    lines = _few(graph_differences(one, other, SIDES))
    tasks = [{row.ops: row for row in program.tasks} for program in (one, other)]
    shared = [row for row in one.tasks if row.ops in tasks[1]]
    for side, mine, there in zip(SIDES, (one, other), reversed(tasks), strict=True):
        alone = (row for row in mine.tasks if row.ops not in there)
        lines += _few(f"task {row.name} [{', '.join(row.ops)}] is only {side}" for row in alone)
    lines += _moves(shared, tasks[1])
    lines += _order(shared, [row for row in other.tasks if row.ops in tasks[0]])
    lines += _few(
        f"threads of {row.name}: {row.threads} -> {tasks[1][row.ops].threads}"
        for row in shared
        if row.threads != tasks[1][row.ops].threads
    )
    return lines + list(_decided(one, other))


def _moves(shared: Sequence[SavedTask], there: Mapping[tuple[str, ...], SavedTask]) -> list[str]:
    """Which tasks went from which lane to which."""
    moved: dict[str, list[str]] = {}
    for row in shared:
        if row.lane != there[row.ops].lane:
            more = " ..." if len(row.ops) > 1 else ""
            moved.setdefault(f"{row.lane} -> {there[row.ops].lane}", []).append(f"{row.name} ({row.ops[0]}{more})")
    count = sum(map(len, moved.values()))
    if not count:
        return []
    ways = (f"  {way}: {', '.join(_few(names))}" for way, names in moved.items())
    return [f"{count} task{'s' if count > 1 else ''} moved", *_few(ways)]


def _order(one: Sequence[SavedTask], other: Sequence[SavedTask]) -> list[str]:
    """The first place at which tasks that both have are issued in another order."""
    for mine, theirs in zip(one, other, strict=True):
        if mine.ops != theirs.ops:
            return [f"order: {mine.name} ({mine.ops[0]}) comes next {SIDES[0]}, and {theirs.name} ({theirs.ops[0]}) {SIDES[1]}"]
    return []


def _decided(one: SavedProgram, other: SavedProgram) -> Iterator[str]:
    """Who decided, and what is expected."""
    for name in ("policy", "note"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            yield f"{name}: {mine or 'none'} -> {theirs or 'none'}"
    for name in ("makespan", "serial", "cost", "bound"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            words = ["unknown" if each is None else format_duration(each) for each in (mine, theirs)]
            yield f"{name}: {words[0]} -> {words[1]}{' (by rounding)' if words[0] == words[1] else ''}"
    same = {row.ops: row for row in other.tasks}
    times = [
        row.name for row in one.tasks if row.ops in same and (row.start, row.end) != (same[row.ops].start, same[row.ops].end)
    ]
    if times:
        yield f"start or end of {', '.join(_few(times))}"
    reasons = [row.name for row in one.tasks if row.ops in same and row.reason != same[row.ops].reason]
    if reasons:
        yield f"reasons of {', '.join(_few(reasons))}"


def _few(lines: Iterable[str]) -> list[str]:
    return first_lines(list(lines), MOST)
