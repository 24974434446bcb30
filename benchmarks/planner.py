"""What the planner finds, beside what is published, what is optimal and what others do.

    python benchmarks/planner.py
    python benchmarks/planner.py --quick
    python benchmarks/planner.py --only throughput,pipedream --workloads ../shared/workloads

throughput     placements of the dnn-partitioning workloads, scored from their files, beside published optima
pipedream      profiled layers on two and four devices: predicted, and executed as tasks that sleep on real lanes
exchanged      graphs cut from full schedules with passages, up to 1,000 tasks: how far plans and bounds are from these
parts          graphs made of contiguous parts, up to 3,000 tasks on unequal processors: how far loads are from theirs
strips         towers, trees and grids that four processors can share in contiguous parts: how far makespans are from bounds
theory         nineteen families of graphs whose optimum is known by theory: how far above it plans are, and faults
random         random task graphs: how far `list` and `auto` are from proven optima; every schedule is checked
side-by-side   real models on 2, 4 and 8 GPUs, simulated: accelerate, METIS, KaHyPar, HEFT, round robin and ours
promise        what policies promise, beside what the simulator finds for the lowered program
scale          seconds of `list` on graphs of 10^3 to 10^6 tasks, and the exponent with which they grow

The first two need files of others, which are not part of this repository: a folder with `dnn-partitioning/throughput/*.json`
(github.com/msr-fiddle/dnn-partitioning) and `pipedream/*.txt` (github.com/msr-fiddle/pipedream, profiles as text). What others
do needs ``pip install pymetis mtkahypar accelerate``; what is not installed is left out. Random and throughput use ortools.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import _full_schedules
from _common import print_machine, table
from _random_graphs import Known, kinds_of_graph
from _scorers import placement_faults, schedule_faults, score
from _timed_tasks import executed
from _workloads import PUBLISHED, graph_of, machine_of, profile_file, throughput_file

from partitioner.ir.problem import Channel, Kind, Problem, Processor
from partitioner.planner.policies import POLICIES, Auto, List
from partitioner.planning import plan

WORKLOADS = Path(__file__).parents[2] / "shared" / "workloads"

SAME = 5e-5
"""Part of a published figure by which ours may differ and still be equal: they are rounded."""


def main(words: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 where a section returned something that is wrong."""
    options, wrong = arguments(words), False
    print_machine()
    for name in options.only:
        start = time.perf_counter()
        print(f"### {name}\n", flush=True)
        wrong |= bool(SECTIONS[name](options))
        print(f"\n({name}: {time.perf_counter() - start:.0f} s)\n", flush=True)
    return int(wrong)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little of each section: shows that it runs, no more")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SECTIONS), help=", ".join(SECTIONS))
    parser.add_argument("--workloads", type=Path, default=WORKLOADS, help="the folder with files of others")
    parser.add_argument("--time-limit", type=float, help="seconds for each throughput workload; 60, or 3 with --quick")
    parser.add_argument("--seeds", type=int, help="random graphs of each kind and size; 4, or 1 with --quick")
    parser.add_argument("--rounds", type=int, help="turns of each side where tasks are executed; 3, or 1 with --quick")
    parser.add_argument("--max-tasks", type=int, help="the largest graph of `scale`; 1000000, or 10000 with --quick")
    options = parser.parse_args(words)
    unknown = [name for name in options.only if name not in SECTIONS]
    if unknown:
        parser.error(f"no section is called {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    options.time_limit = options.time_limit or (3.0 if options.quick else 60.0)
    options.seeds = options.seeds or (1 if options.quick else 4)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.max_tasks = options.max_tasks or (10_000 if options.quick else 1_000_000)
    return options


def tried(name: str, row: Callable[[], Sequence[object]]) -> Sequence[object]:
    """A row of a table; where it fails, why, so that the others are still printed."""
    try:
        return row()
    except Exception as error:
        return [name, f"FAILED: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]]


def show(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; rows that are too short are filled up."""
    print(table(head, [[*row, *[""] * (len(head) - len(row))] for row in rows]), flush=True)


def files(options: argparse.Namespace, folder: str) -> bool:
    """Whether a set of workloads is there; says so if it is not."""
    there = (options.workloads / folder).is_dir()
    if not there:
        print(f"skipped: {options.workloads / folder} is not there; name the folder with --workloads")
    return there


# Throughput -----------------------------------------------------------------------------------------------------------


def throughput(options: argparse.Namespace) -> None:
    """The largest load of a device: contiguous, and not."""
    if not files(options, "dnn-partitioning"):
        return
    for contiguous in (True, False):
        limit = options.time_limit / (2 if contiguous else 1)
        known = "published optimum" if contiguous else "best known"
        head = ["workload", "k", known, "ours", "is", "proven at least", "gap", "seconds", "by"]
        print(f"{'Contiguous' if contiguous else 'Not contiguous'}, at most {limit:.0f} s each:\n")
        names = list(PUBLISHED)[:2] if options.quick else list(PUBLISHED)
        rows = [tried(name, partial(_workload, options, name, contiguous, limit)) for name in names]
        show(head, rows)
        print()


def _workload(options: argparse.Namespace, name: str, contiguous: bool, limit: float) -> list[object]:
    raw, published = throughput_file(options.workloads, name), PUBLISHED[name]
    start = time.perf_counter()
    answer = plan(
        graph_of(raw), machine_of(raw), objective="throughput", contiguous=contiguous, policy="auto", time_limit=limit
    )
    seconds = time.perf_counter() - start
    placement = {int(task): device for task, device in answer.placement.items()}
    faults = placement_faults(raw, placement, contiguous)
    found, known = score(raw, placement), published.contiguous if contiguous else published.best
    word = (
        "equal" if math.isclose(found, known, rel_tol=SAME) else "BETTER" if found < known else f"{found / known - 1:.2%} worse"
    )
    if contiguous and not published.exact:
        word += " (published: one order)"
    bound = answer.lower_bound * 1e3
    gap = f"{max(0.0, 1 - bound / found):.2%}"
    return [
        name,
        raw["maxFPGAs"],
        known,
        f"{found:.4f}",
        faults[0] if faults else word,
        f"{bound:.3f}",
        gap,
        f"{seconds:.1f}",
        answer.policy,
    ]


# Profiled layers ------------------------------------------------------------------------------------------------------

SCALES = {"nasnetalarge": 10.0, "inception_v3": 4.0}
"""Of the profiles that have something to gain: by what their milliseconds are multiplied when they are executed."""

PUBLISHED_SPEEDUPS = {
    "nasnetalarge": (1.95, 3.40),
    "inception_v3": (1.49, 1.59),
    "resnet50": (1.07, 1.07),
    "gnmt": (1.00, 1.00),
}
"""Of list scheduling by upward rank on two and four devices; the limit, where nobody gave one."""


def pipedream(options: argparse.Namespace) -> None:
    """Speedups over one device: predicted without hand-offs, then executed with them."""
    if not files(options, "pipedream"):
        return
    head = ["profile", "layers", "devices", "work / critical path", "to reach", "`list`", "`auto`", "proven limit"]
    cases = [
        (name, devices, wish) for name, both in PUBLISHED_SPEEDUPS.items() for devices, wish in zip((2, 4), both, strict=True)
    ]
    show(head, [tried(case[0], partial(_predicted, options, *case)) for case in cases])
    print("\nExecuted: layers sleep on CPU lanes; serial is eager on one thread. Late: by how much more than was planned.\n")
    head = ["profile", "lanes", "tasks", "predicted", "executed", "serial ms", "lanes ms", "serial late", "lanes late"]
    runs = [("inception_v3", 4)] if options.quick else [(name, lanes) for name in SCALES for lanes in (2, 4)]
    show(head, [tried(name, partial(_executed, options, name, lanes)) for name, lanes in runs])


def _predicted(options: argparse.Namespace, name: str, devices: int, wish: float) -> list[object]:
    profile = profile_file(options.workloads, name)
    problem, limit = profile.problem(devices), profile.work / profile.critical_path
    listed, best = List()(problem), Auto(time_limit=2.0 if options.quick else 10.0)(problem)
    for answer in (listed, best):
        faults = schedule_faults(problem, answer)
        assert not faults, faults[0]
    work = profile.work * 1e-3
    gains = [f"{work / answer.cost:.3f}" for answer in (listed, best)]
    return [name, len(profile.layers), devices, f"{limit:.3f}", wish, *gains, f"{work / max(listed.bound, best.bound):.3f}"]


def _executed(options: argparse.Namespace, name: str, lanes: int) -> list[object]:
    profile, scale = profile_file(options.workloads, name), SCALES[name]
    found = executed(profile, lanes, List(), scale, options.rounds)
    times = [f"{statistics.median(each) * 1e3:.0f}" for each in (found.serial, found.lanes)]
    late = [f"{each:.1%}" for each in found.late]
    return [name, lanes, found.tasks, f"{found.predicted:.2f}x", found.speedup, *times, *late]


# Random graphs --------------------------------------------------------------------------------------------------------


def random_graphs(options: argparse.Namespace) -> None:
    """How much longer than the optimum schedules are."""
    head = ["graphs", "processors", "with a proven optimum", "`list` above it", "`auto` above it", "worst `auto`", "faults"]
    sizes, limit = ((2, 8), 2.0) if options.quick else ((2, 4, 8, 16), 10.0)
    found: dict[str, list[tuple[float, float]]] = {}
    kinds = kinds_of_graph(sizes, options.seeds, limit)
    show(head, [tried(kind[0], partial(_above, *kind, found.setdefault(kind[0], []))) for kind in kinds])
    print("\nAbove the optimum on average (aims: `list` 0.8%, `auto` 0.05%):")
    full = [each for name, own in found.items() if "unequal" in name and "cut" in name for each in own]
    links = [each for name, own in found.items() if name.endswith("links") for each in own]
    equal = [each for name, own in found.items() if "unequal" not in name for each in own]
    sorts = {"equal processors": equal, "unequal ones with links": links, "both": equal + links}
    for words, each in (sorts | {"unequal ones, all of them full": full}).items():
        if each:
            mean = [statistics.fmean(column) for column in zip(*each, strict=True)]
            print(f"- {words}, {len(each)} graphs: `list` {mean[0]:.3%}, `auto` {mean[1]:.4%}")


def _above(name: str, processors: str, problems: Iterator[Known], found: list[tuple[float, float]]) -> list[object]:
    own, count, faults = list[tuple[float, float]](), 0, list[str]()
    for problem, least, proven in problems:
        count += 1
        answers = List()(problem), Auto(time_limit=10.0)(problem)
        proven = proven or answers[1].cost <= least + 1e-6  # nothing is below the model's bound
        for answer in answers:
            faults += schedule_faults(problem, answer)
            if proven and not answer.bound - 1e-6 <= least <= answer.cost + 1e-6:
                faults.append(f"{problem.name}: {answer.bound} <= {least} <= {answer.cost} does not hold")
        if proven:
            own.append((answers[0].cost / least - 1, answers[1].cost / least - 1))
    found += own
    means = [f"{statistics.fmean(column):.3%}" for column in zip(*own, strict=True)] or ["", ""]
    worst = f"{max((each[1] for each in own), default=0.0):.3%}"
    return [name, processors, f"{len(own)} of {count}", *means, worst, faults[0] if faults else "none"]


# Scale ----------------------------------------------------------------------------------------------------------------

LIMITS = {10**3: 0.05, 10**4: 0.5, 10**5: 5.0, 10**6: 60.0}
"""Seconds in which a graph of so many tasks is to be planned."""

OTHERS: dict[str, dict[str, Any]] = {
    "latency, nothing overlaps": {"overlap": False},
    "throughput": {"objective": "throughput"},
    "throughput, nothing overlaps": {"objective": "throughput", "overlap": False},
    "throughput, contiguous": {"objective": "throughput", "contiguous": True},
}
"""Questions that are timed beside latency: a name and what makes them."""


def scale(options: argparse.Namespace) -> None:
    """Seconds of a Problem and its placement by `list`, on four processors with links, and the exponent of their growth."""
    rows, points = [], list[tuple[float, float]]()
    for count, limit in LIMITS.items():
        if count <= options.max_tasks:
            found = [_planned(count) for _ in range(5 if count < 10**5 else 1)]
            wall, own = (statistics.median(column) for column in zip(*found, strict=True))
            points.append((math.log(count), math.log(own)))
            rows.append([count, f"{own:.3g}", f"{wall:.3g}", limit, "yes" if own <= limit else "NO"])
    show(["tasks", "CPU seconds", "wall seconds", "limit", "within"], rows)
    print("\nIt is one thread, so on an idle machine both are equal; on a busy one, the CPU's are what counts.")
    if len(points) > 1:
        slope = statistics.linear_regression(*zip(*points, strict=True)).slope
        print(f"seconds grow with tasks to the power of {slope:.2f} (aim: at most 1.15)")
    counts = [count for count in LIMITS if count <= min(options.max_tasks, 10**5)]
    cells = [[name, *(f"{_planned(count, **more)[1]:.3g}" for count in counts)] for name, more in OTHERS.items()]
    print("\nCPU seconds of other questions, by the number of tasks:")
    show(["", *map(str, counts)], cells)


def _planned(count: int, **more: Any) -> tuple[float, float]:
    """Wall and CPU seconds from tables to an answer, of a graph in which each task reads two of the fifty before it."""
    draw = random.Random(count)
    seconds = [draw.uniform(1e-5, 1e-3) for _ in range(count)]
    pairs = [(task - gap, task) for task in range(1, count) for gap in {draw.randint(1, min(50, task)) for _ in range(2)}]
    names = tuple(map(str, range(count)))
    processors = tuple(Processor(f"p{number}", 0) for number in range(4))
    ways = [(one, two) for one in range(4) for two in range(4) if one != two]
    channels = tuple(Channel(f"{one} -> {two}", 5e10, 1e-5, (one, two)) for one, two in ways)
    gc.collect()
    start = time.perf_counter(), time.process_time()
    edges = [(source, target, source) for source, target in pairs]
    values = [(task, 1e6) for task in range(count)]
    routes = {way: (number,) for number, way in enumerate(ways)}
    List()(Problem("scale", names, (Kind("gpu", {1: seconds}),), processors, edges, values, channels, routes, **more))
    return time.perf_counter() - start[0], time.process_time() - start[1]


def side_by_side(options: argparse.Namespace) -> None:
    from _side_by_side import compared

    compared(options.quick, show, tried)


def promise(options: argparse.Namespace) -> None:
    from _side_by_side import promised

    promised(options.quick, show, tried, POLICIES)


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "throughput": throughput,
    "pipedream": pipedream,
    "random": random_graphs,
    "exchanged": lambda options: _full_schedules.compared(options.quick, show, tried),
    "parts": lambda options: _full_schedules.parts(options.quick, show, tried),
    "strips": lambda options: _full_schedules.strips(options.quick, show, tried),
    "theory": lambda options: _full_schedules.theory(options.quick, show, tried),
    "side-by-side": side_by_side,
    "promise": promise,
    "scale": scale,
}

if __name__ == "__main__":
    raise SystemExit(main())
