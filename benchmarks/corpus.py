"""Models nobody here wrote: does the partitioned module do what eager does, or say why not?

    python benchmarks/corpus.py --quick                           a fixed sample of ten models
    python benchmarks/corpus.py --workers 2 --output docs/coverage.md
    python benchmarks/corpus.py --family user --sample 5
    python benchmarks/corpus.py user/unet transformers/bert       these

Every model runs in eval mode and in train mode, over three CPU lanes with spreading forced, and its plan for eight GPUs on
fake devices; see `_judge.py`. Each model is judged in a worker process with a time limit, so that a crash ends only itself.
A *refusal* is an error that tells the user why; what must never happen is a *silent difference*, and then this ends with 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue

import _corpus_models
from _common import report_machine, table
from _judge import Row

MODES = ("eval", "train")
JOBS_PER_WORKER = 40
"""A fresh process after so many, because what models and tracers cache piles up."""

Job = tuple[str, str]


def main(words: Sequence[str] | None = None) -> int:
    """Judge the models that the command line names; the number of silent differences, at most 1."""
    options = arguments(words)
    jobs = [(name, mode) for name in chosen(options) for mode in MODES]
    rows = judge_all(jobs, options.workers, options.timeout)
    text = report(rows)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    return int(any(row.verdict == "different" for row in rows))


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="names of models; all of the corpus if left out")
    parser.add_argument("--quick", action="store_true", help="the fixed sample that the tests run")
    parser.add_argument("--family", help="only one family: " + ", ".join(families()))
    parser.add_argument("--sample", type=int, metavar="N", help="N models, evenly spaced over those chosen")
    parser.add_argument("--large", action="store_true", help="models of more than a gibibyte too; each takes ten times that")
    parser.add_argument("--workers", type=int, default=1, help="processes; each needs the memory of the largest model twice")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one model in one mode")
    parser.add_argument("--output", type=Path, help="write the report here too, such as docs/coverage.md")
    return parser.parse_args(words)


def families() -> list[str]:
    return list(dict.fromkeys(entry.family for entry in _corpus_models.CORPUS.values()))


def chosen(options: argparse.Namespace) -> list[str]:
    """Names of the models to judge, in the order of the corpus."""
    wanted = options.models or (_corpus_models.SAMPLE if options.quick else list(_corpus_models.CORPUS))
    unknown = [name for name in wanted if name not in _corpus_models.CORPUS]
    if unknown:
        raise SystemExit(f"no model of the corpus is called {', '.join(unknown)}")
    entries = [_corpus_models.CORPUS[name] for name in wanted]
    names = [
        entry.name
        for entry in entries
        if entry.installed and options.family in (None, entry.family) and (options.large or not entry.large)
    ]
    count = min(options.sample or len(names), len(names))
    return [names[index * len(names) // count] for index in range(count)]


# Worker processes -----------------------------------------------------------------------------------------------------


def judge_all(jobs: Sequence[Job], workers: int, timeout: float) -> list[Row]:
    """A row for each job, in order. Each thread here looks after one process, and replaces it when it dies."""
    queue: SimpleQueue[Job] = SimpleQueue()
    for job in jobs:
        queue.put(job)
    rows: dict[Job, Row] = {}
    keepers = [threading.Thread(target=_keep_worker, args=(queue, rows, timeout, len(jobs))) for _ in range(workers)]
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.join()
    return [rows[job] for job in jobs]


def _keep_worker(queue: SimpleQueue[Job], rows: dict[Job, Row], timeout: float, total: int) -> None:
    worker = _Worker()
    while True:
        try:
            job = queue.get_nowait()
        except Empty:
            break
        if worker.done >= JOBS_PER_WORKER:
            worker.stop()
            worker = _Worker()
        rows[job] = worker.judge(job, timeout)
        if not worker.process.is_alive():
            worker = _Worker()
        row = rows[job]
        said = "; ".join(row.reasons)
        print(
            f"[{len(rows)}/{total}] {row.name} {row.mode}: {row.verdict} {row.seconds:.1f} s {said}",
            file=sys.stderr,
            flush=True,
        )
    worker.stop()


class _Worker:
    """A process that judges one job after the other."""

    def __init__(self) -> None:
        context = get_context("spawn")  # a fork would copy torch's thread pools half
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.done = 0

    def judge(self, job: Job, timeout: float) -> Row:
        name, mode = job
        row = Row(name, _corpus_models.CORPUS[name].family, mode)
        self.done += 1
        try:
            self.pipe.send(job)
            if self.pipe.poll(timeout):
                received: Row = self.pipe.recv()
                return received
            row.note("failed", f"no end after {timeout:g} s")
        except (EOFError, OSError):
            self.process.join(5)
            row.note("failed", f"the process died with exit code {self.process.exitcode}")
        self.stop()
        return row

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def _work(pipe: Connection) -> None:
    import torch
    from _judge import judge

    torch.set_num_threads(1)  # bits of a reduction depend on how many threads share it
    torch.set_num_interop_threads(1)
    while True:
        try:
            name, mode = pipe.recv()
        except EOFError:
            return
        pipe.send(judge(name, mode))


# The report -----------------------------------------------------------------------------------------------------------

VERDICTS = {
    "equal": "equal, to the last bit",
    "rounding": "equal up to rounding",
    "refused": "refused, with a reason",
    "failed": "failed",
    "different": "silently different",
    "eager": "not judged: eager does not run, or differs from itself",
}


INTRODUCTION = """
Models nobody here wrote, eager beside partitioned: outputs, buffers, keys, random state and, in train mode, gradients, over
three CPU lanes with spreading forced; the same module then at other batch sizes, in the caller's contexts, in the other mode
and with one attribute changed; then the plan for eight GPUs, run on fake devices, where torch itself refuses ops that mix two.
`bits` is equal to the last bit; a number is the largest difference as a share of the largest magnitude. Gradients may differ
by rounding where three or more of them are summed, whose order autograd does not promise. Made by:
""".strip()


def report(rows: Sequence[Row]) -> str:
    """The whole report in Markdown."""
    parts = [
        "# Coverage",
        INTRODUCTION,
        "\n".join(f"    {line}" for line in report_machine() if "WARNING" not in line),
        summary(rows),
    ]
    for verdict in ("different", "failed", "refused", "eager"):
        found = [row for row in rows if row.verdict == verdict]
        if found:
            parts += [f"## {VERDICTS[verdict].capitalize()}", reasons(found)]
    parts += ["## Every model", models(rows)]
    return "\n\n".join(parts)


def summary(rows: Sequence[Row]) -> str:
    """Counts by family and verdict; one model in one mode counts one."""
    counts = Counter((row.family, row.verdict) for row in rows)
    found = list(dict.fromkeys(row.family for row in rows))
    lines: list[list[object]] = [
        [family, len({row.name for row in rows if row.family == family}), *(counts[family, verdict] for verdict in VERDICTS)]
        for family in found
    ]
    totals = Counter(row.verdict for row in rows)
    lines.append(["**all**", len({row.name for row in rows}), *(totals[verdict] for verdict in VERDICTS)])
    whole, parts, ran = (sum(test(row) for row in rows) for test in (_is_whole, _in_pieces, _ran))
    pieces = f"{ran} ran: {whole} as one graph, {parts} in pieces with Python between them, {ran - whole - parts} as eager."
    return table(["family", "models", *VERDICTS.values()], lines) + "\n\n" + pieces


def _ran(row: Row) -> bool:
    return row.outputs != ""


def _is_whole(row: Row) -> bool:
    return row.graphs == 1


def _in_pieces(row: Row) -> bool:
    return row.graphs > 1


def reasons(rows: Sequence[Row]) -> str:
    """Each reason once, with the models it holds for."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        by_reason.setdefault("; ".join(row.reasons), []).append(f"{row.name} ({row.mode})")
    return "\n".join(f"- {', '.join(names)}: `{reason.replace('`', chr(39))}`" for reason, names in by_reason.items())


COLUMNS = {
    "verdict": "verdict",
    "graphs": "graphs",
    "ops": "ops",
    "lanes": "lanes",
    "outputs": "outputs",
    "gradients": "gradients",
    "buffers": "buffers",
    "keys": "keys",
    "fake": "fake",
}
SCENES = ("batch 1", "batch 2", "batch 3", "batch 5", "inference", "autocast", "attribute", "flipped")


def models(rows: Sequence[Row]) -> str:
    """One line for each model; a cell says what holds in eval mode and in train mode, once if that is the same."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    lines = [
        [name, *(_cell(found, column) for column in COLUMNS.values()), *(_scene(found, scene) for scene in SCENES)]
        for name, found in by_name.items()
    ]
    return table(["model", *COLUMNS, *SCENES], lines)


def _scene(rows: Sequence[Row], name: str) -> str:
    return " / ".join(dict.fromkeys(row.scenes[name] for row in rows if name in row.scenes))


def _cell(rows: Sequence[Row], column: str) -> str:
    values = [str(getattr(row, column) or "") for row in rows]
    shown = [value for value in values if value]
    if column == "gradients":  # only one mode has them
        return "".join(shown)
    return " / ".join(dict.fromkeys(values)) if shown else ""


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # for the workers, before they import torch
    sys.exit(main())
