"""Judges every hostile program in every variant, in worker processes, and prints what is not equal.

    python tests/hostile/report.py                          all of them, two processes
    python tests/hostile/report.py threads hooks.order      those whose names contain one of these
    python tests/hostile/report.py --variant eval-example --verdict different raw

A worker that takes too long is ended, with the program that it was at; that program hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

if __name__ == "__main__":  # as a script, this folder stands first in the path: its files are no modules of that name
    tests = Path(__file__).resolve().parents[1]
    sys.path[0] = str(tests)
    sys.path.insert(1, str(tests.parent))

PROGRAMS_PER_WORKER = 60
"""A fresh process after so many, because what tracers keep piles up."""

Row = dict[str, str]


def main() -> int:
    """Prints the report; 1 if any program is at fault."""
    options = arguments()
    if options.worker:
        return work()
    rows = judge_all(chosen(options), options.workers, options.timeout, options.rows)
    print(report(rows, [word.casefold() for word in options.verdict], options.lines))
    return int(any(row["kind"].isupper() for row in rows))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of programs; all of them if left out")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--timeout", type=float, default=90, help="seconds for one program in one variant")
    parser.add_argument("--variant", nargs="*", default=[], help="only these: eval-example, train-example, train-bare")
    parser.add_argument("--verdict", nargs="*", default=[], help="list only verdicts that begin so; all but equal if left out")
    parser.add_argument("--lines", type=int, default=3, help="lines of each message")
    parser.add_argument("--rows", type=Path, help="write each verdict here as it comes, as a line of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[str]:
    """A job is a program's name and a variant."""
    from hostile import PROGRAMS
    from hostile.judge import VARIANTS

    return [
        f"{name} {variant}"
        for name, program in PROGRAMS.items()
        for variant in VARIANTS
        if (variant.example or program.bare)
        and (not options.names or any(word in name for word in options.names))
        and (not options.variant or str(variant) in options.variant)
    ]


def judge_all(jobs: list[str], workers: int, timeout: float, file: Path | None = None) -> list[Row]:
    """A row for each job, by threads that each keep one process at work."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for job in jobs:
        waiting.put(job)
    rows: list[Row] = []
    keepers = [threading.Thread(target=_keep, args=(waiting, rows, timeout, file)) for _ in range(workers)]
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.join()
    return sorted(rows, key=lambda row: jobs.index(row["job"]))


def _keep(waiting: SimpleQueue[str], rows: list[Row], timeout: float, file: Path | None) -> None:
    worker: Worker | None = None
    while True:
        try:
            job = waiting.get_nowait()
        except Empty:
            break
        if worker is None or worker.jobs >= PROGRAMS_PER_WORKER:
            if worker is not None:
                worker.end()
            worker = Worker()
        row = worker.judge(job, timeout)
        rows.append(row)
        if file is not None:
            with file.open("a") as text:
                text.write(json.dumps(row) + "\n")
        if row["kind"] in ("HANG", "CRASH"):
            worker.end()
            worker = None
        if sys.stderr.isatty():
            print(f"\r{len(rows)} {job:80.80}", end="", file=sys.stderr)
    if worker is not None:
        worker.end()


class Worker:
    """A process that judges one job after the other."""

    def __init__(self) -> None:
        self.jobs = 0
        self.log = Path(os.environ.get("TMPDIR", "/tmp"), f"hostile-{os.getpid()}-{id(self)}.log")
        command = [sys.executable, __file__, "--worker"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, pipe: IO[str]) -> None:
        for line in pipe:
            self.lines.put(line)
        self.lines.put("")

    def judge(self, job: str, timeout: float) -> Row:
        self.jobs += 1
        assert self.process.stdin is not None
        before = self.log.stat().st_size
        try:
            self.process.stdin.write(job + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=timeout)
        except Empty:
            return {"job": job, "kind": "HANG", "detail": f"no end after {timeout:g} seconds"}
        except OSError:
            line = ""
        if not line:
            return {"job": job, "kind": "CRASH", "detail": f"the process ended: {self.log.read_text()[-600:]}"}
        row: Row = json.loads(line)
        row["log"] = self.log.read_text(errors="replace")[before:]
        return row

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.unlink()


def work() -> int:
    """Reads jobs, writes rows. What programs print goes to the log."""
    from hostile import PROGRAMS
    from hostile.judge import VARIANTS, judge

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    variants = {str(variant): variant for variant in VARIANTS}
    for line in sys.stdin:
        name, variant = line.split()
        start = time.perf_counter()
        verdict = judge(PROGRAMS[name], variants[variant])
        sys.stdout.flush()
        seconds = f"{time.perf_counter() - start:.2f}"
        expected = "expected" if PROGRAMS[name].refused else PROGRAMS[name].limit or PROGRAMS[name].unchecked
        row = {"job": line.strip(), "kind": verdict.kind, "detail": verdict.detail, "seconds": seconds, "expected": expected}
        print(json.dumps(row), file=answers, flush=True)
    return 0


def report(rows: list[Row], wanted: list[str], lines: int) -> str:
    """Counts, by verdict and by file, and what is not equal."""
    counts = Counter(row["kind"] for row in rows)
    programs = {row["job"].split()[0] for row in rows}
    text = [
        f"{len(programs)} programs, {len(rows)} runs: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    ]
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        by_file[row["job"].split(".")[0]][row["kind"]] += 1
    for file, found in by_file.items():
        text.append(f"  {file:12} " + "  ".join(f"{kind} {found[kind]}" for kind in counts))
    for kind in ("DIFFERENT", "RAW ERROR", "HANG", "CRASH", "refused"):
        listed = [row for row in rows if row["kind"] == kind]
        if wanted and not any(kind.casefold().startswith(word) for word in wanted):
            continue
        if listed:
            text.append(f"\n{kind}")
        for row in listed:
            message = "\n      ".join(row["detail"].splitlines()[:lines])
            expected = f" ({row['expected']})" if row.get("expected") else ""
            text.append(f"  {row['job']}{expected}\n      {message}")
    noisy = [row["job"] for row in rows if "Traceback" in row.get("log", "") or row.get("log", "").count("\n") > 20]
    if noisy:
        text.append(f"\nwith a page of log: {', '.join(noisy)}")
    slowest = sorted(rows, key=lambda row: -float(row.get("seconds", "0")))[:8]
    text.append("\nslowest: " + ", ".join(f"{row['job']} {row.get('seconds')} s" for row in slowest))
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
