"""What do lanes, CUDA graphs and both together gain on one GPU, beside the best that others do with it? Ready to run.

    python benchmarks/gpu.py                                  the GPU tests, then every model, in nine minutes
    python benchmarks/gpu.py --models googlenet,t5 --batches 1 --minutes 5 --output docs/gpu
    python benchmarks/gpu.py --no-tests --no-slow             without torch.compile, whose compilations take most of the time
    python benchmarks/gpu.py --dry-run                        small, on a CPU: shows that it runs, no more

Needs torch and this tree. Eager, a CUDA graph of eager's one stream, torch.compile(mode="reduce-overhead"), ours on streams,
ours as CUDA graphs (lanes where they are predicted to pay; lanes in any case), and ours with tasks that inductor compiles. A
time is that of one call on an idle device, by CUDA events: median (quartiles) over rounds in turns. ``--flush`` empties the
second-level cache before every call of every way. The limit is what no issuing could beat (`_gpu_limit`). When its minutes are
over it stops, and says what is missing. Figures go to OUTPUT.md and OUTPUT.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _common import Ratio, print_machine, report_machine, table
from _gpu_host import host_and_gpu
from _gpu_limit import OP, Kernels, Limit, limit, traced
from _gpu_models import HOST, MODELS, Model
from _gpu_ways import OURS, QUICK, SLOW, Flush, Way, alternate, difference, make, quartiles

from partitioner import partition

ROOT = Path(__file__).parent.parent
TOLERANCE = 2e-2
"""Part of the largest value by which a way may be off: TF32, and kernels that sum in another order."""

COLUMNS = ("eager", "graph", "torch.compile", *OURS)


@dataclass
class Row:
    """One model at one batch size.

    Args:
        ways: what was timed, by column; of what was timed twice, the second time.
        reasons: why columns are empty.
        limit: the least that a call can take.
    """

    model: str
    batch: int
    ways: dict[str, Way] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    limit: Limit | None = None


@dataclass
class Clock:
    """The minutes that there are."""

    end: float

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    clock = Clock(time.monotonic() + 60 * options.minutes)
    if options.dry_run or not torch.cuda.is_available():
        if not options.dry_run:
            print("no CUDA device on this machine: nothing is measured; every model is run small, on the CPU, instead")
        dry_run(options.models)
        return
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    print_machine()
    properties = torch.cuda.get_device_properties(0)
    print(f"device: {properties.name}, {properties.multi_processor_count} multiprocessors, CUDA {torch.version.cuda}")
    tests = gpu_tests(min(200, clock.left / 3)) if options.tests else "not run"
    print(f"GPU tests: {tests}\n", flush=True)
    rows = [Row(name, batch) for batch in options.batches for name in options.models]
    host: list[str] = []
    try:
        measure_all(rows, options, clock)
        if clock.left > 20:
            host = host_and_gpu(HOST, options.rounds)
    finally:
        text = report(rows, host, tests, clock)
        print(text)
        if options.output:
            write(options.output, rows, host, tests, text)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="after which it stops; 9")
    parser.add_argument("--models", type=_list_of(MODELS), default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--batches", type=lambda text: [int(word) for word in text.split(",")], default=[1, 4, 32])
    parser.add_argument("--rounds", type=int, default=30, help="turns of each way; 30")
    parser.add_argument("--flush", action="store_true", help="empty the second-level cache before each call of every way")
    parser.add_argument("--half", action="store_true", help="models and inputs in float16")
    parser.add_argument("--no-tests", dest="tests", action="store_false", help="leave the GPU tests out")
    parser.add_argument("--no-slow", dest="slow", action="store_false", help="leave out what takes long to compile")
    parser.add_argument("--output", type=Path, help="where to write, without .md and .json")
    parser.add_argument("--dry-run", action="store_true", help="small and on the CPU, beside eager; no figures")
    return parser.parse_args(words)


def _list_of(known: Any) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(known)}")
        return names

    return parse


def gpu_tests(seconds: float) -> str:
    """The last line of what pytest says of the tests that need a GPU."""
    if importlib.util.find_spec("pytest") is None:
        return "not run, for pytest is not installed"
    files = ["tests/test_gpu.py", "tests/test_cuda_graphs.py"]
    options = ["-o", "addopts=", "-W", "ignore::pytest.PytestConfigWarning", "-p", "no:cacheprovider"]  # plugins may be missing
    command = [sys.executable, "-m", "pytest", *files, "-m", "gpu", "-q", "--no-header", *options]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False, env=os.environ)
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return f"stopped after {seconds:.0f} s: {said.strip().splitlines()[-1:]}"
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    return "\n".join([lines[-1], *(f"  {line}" for line in lines if line.startswith(("FAILED", "ERROR")))])


# Measuring ------------------------------------------------------------------------------------------------------------


def measure_all(rows: Sequence[Row], options: argparse.Namespace, clock: Clock) -> None:
    """For each batch size all models with the ways that are made quickly, then with those that are not, while there is time."""
    rounds = [(QUICK, 20.0), (SLOW, 60.0)] if options.slow else [(QUICK, 20.0)]
    for batch, (names, needed) in itertools.product(options.batches, rounds):
        for row in rows:
            if row.batch != batch:
                continue
            if clock.left < needed:
                row.reasons |= {name: "out of time" for name in names if name not in row.ways}
                continue
            began = time.monotonic()
            measure(row, names, options)
            print(f"{row.model}, batch {row.batch}: {', '.join(names[2:])} in {time.monotonic() - began:.0f} s", flush=True)


def measure(row: Row, names: Sequence[str], options: argparse.Namespace) -> None:
    """Make some ways of one row, hold each against eager, and time them in turns."""
    entry = MODELS[row.model]
    model, inputs = entry.made("cuda:0", small=False), entry.call(row.batch, "cuda:0", small=False)
    if options.half:
        model, inputs = model.half(), tuple(x.half() if x.is_floating_point() else x for x in inputs)
    made: list[Way] = []
    with torch.no_grad():
        wanted = model(*inputs)
        for name in names:
            try:
                way = make(name, model, inputs)
                gap = difference(wanted, way.call())
                if gap > TOLERANCE * (4 if options.half else 1):
                    raise ArithmeticError(f"differs from eager by {gap:.0e} of the largest value")
                made.append(way)
            except Exception as error:  # a way may be refused, or fail in its compiler: the others go on
                row.reasons[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]
        alternate(made, options.rounds, Flush(options.flush))
        ours = next((way.parallel for way in made if way.name == "ours" and way.parallel is not None), None)
        if ours is not None and row.limit is None:
            try:
                row.limit = limit(ours, inputs)
            except Exception as error:  # the profiler's, and the times stand without it
                row.reasons["limit"] = f"{type(error).__name__}: {error}"[:300]
    for way in made:
        row.ways[way.name] = way
        row.reasons.pop(way.name, None)
        way.call, way.parallel = (lambda: None), None  # or its memory would stay
    torch.cuda.empty_cache()


# Reporting ------------------------------------------------------------------------------------------------------------


def report(rows: Sequence[Row], host: Sequence[str], tests: str, clock: Clock) -> str:
    """Markdown: times, gains, memory, and what is missing."""
    parts = [f"GPU tests: {tests}", "Milliseconds of one call: median (quartiles)"]
    parts.append(table(["model", "batch", *COLUMNS, "limit"], [_times(row) for row in rows if row.ways]))
    parts.append("Times as fast as a CUDA graph of one stream; work over limit is the most that lanes can gain")
    parts.append(table(["model", "batch", *COLUMNS[2:], "work / limit"], [_gains(row) for row in rows if "graph" in row.ways]))
    parts.append("Peak of tensors beside the model, and in brackets what stays reserved, in MB")
    parts.append(table(["model", "batch", *COLUMNS], [_memory(row) for row in rows if row.ways]))
    plans = [
        f"- {row.model}, batch {row.batch}, {way.name}: {way.note}" for row in rows for way in row.ways.values() if way.note
    ]
    missing = [f"- {row.model}, batch {row.batch}, {name}: {reason}" for row in rows for name, reason in row.reasons.items()]
    parts += ["Plans\n\n" + "\n".join(plans), "Missing\n\n" + ("\n".join(missing) or "- nothing"), *host]
    parts.append(f"{max(0.0, clock.left):.0f} s of the time were left")
    return "\n\n".join(parts)


def _times(row: Row) -> list[object]:
    cells: list[object] = [row.model, row.batch]
    for name in COLUMNS:
        low, median, high = quartiles(row.ways[name].milliseconds) if name in row.ways else (0, 0, 0)
        cells.append(f"{median:.3f} ({low:.3f} to {high:.3f})" if name in row.ways else "")
    return [*cells, f"{row.limit.seconds * 1e3:.3f}" if row.limit else ""]


def _gains(row: Row) -> list[object]:
    cells: list[object] = [row.model, row.batch]
    for name in COLUMNS[2:]:
        way = row.ways.get(name)
        cells.append(Ratio.of(way.graph, way.milliseconds) if way is not None and way.graph else "")
    gain = f"{row.limit.work / row.limit.seconds:.2f}x" if row.limit and row.limit.seconds else ""
    return [*cells, gain]


def _memory(row: Row) -> list[object]:
    ways = (row.ways.get(name) for name in COLUMNS)
    return [row.model, row.batch, *(f"{way.peak / 1e6:.0f} ({way.held / 1e6:.0f})" if way else "" for way in ways)]


def write(path: Path, rows: Sequence[Row], host: Sequence[str], tests: str, text: str) -> None:
    """The report, and every sample."""
    document = {
        "machine": report_machine(),
        "device": torch.cuda.get_device_name(0),
        "tests": tests,
        "rows": [
            {
                "model": row.model,
                "batch": row.batch,
                "limit": vars(row.limit) if row.limit else None,
                "reasons": row.reasons,
                "ways": {
                    name: {"milliseconds": way.milliseconds, "peak": way.peak, "held": way.held, "note": way.note}
                    for name, way in row.ways.items()
                },
            }
            for row in rows
        ],
        "host": list(host),
    }
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    path.with_suffix(".md").write_text("\n".join(report_machine()) + "\n\n" + text + "\n")


# Without a GPU --------------------------------------------------------------------------------------------------------


def dry_run(names: Sequence[str]) -> None:
    """Every model small, on two CPU lanes, beside eager, and profiled op by op."""
    for name in [*names, "host and GPU"]:
        gap, least = dry(MODELS.get(name, HOST))
        print(f"{name}: off by {gap:.0e}; were all kernels equal and small, lanes could gain {least.work / least.seconds:.1f}x")
        assert gap < 1e-4, f"{name} differs from eager"


def dry(entry: Model) -> tuple[float, Limit]:
    """The largest difference of a small model from eager, and its limit if all ops took one time on a tenth of a device."""
    model, inputs = entry.made("cpu", small=True), entry.call(2, "cpu", small=True)
    with torch.no_grad():
        parallel = partition(model, ["cpu:0", "cpu:1"], example_inputs=inputs, check=False, copy=True, grain=1e-9)
        gap = difference(model(*inputs), parallel(*inputs))
        graph, events = traced(parallel, inputs)
    named = {str(event["name"]).removeprefix(OP) for event in events if str(event.get("name", "")).startswith(OP)}
    assert named >= set(graph.by_name), "the profiler does not know every op"
    return gap, Limit.of(graph, dict.fromkeys(graph.by_name, Kernels(1e-6, 1e-7)))


if __name__ == "__main__":
    main()
