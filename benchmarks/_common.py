"""What every benchmark here prints and does: the machine, the command, a table, and timings that alternate.

Two timings are compared only if they were taken side by side. So rounds alternate, A B A B, each round gives one ratio, and
the median of the ratios is reported with their spread; a machine that slows down for a while slows both.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.append(str(Path(__file__).parent.parent))  # this tree, where the package is not installed

SHORTEST = 0.01
"""Seconds that one sample lasts at least: a shorter call is repeated within it."""


def report_machine() -> list[str]:
    """Where and how this was run, as lines; a warning among them if the machine is busy."""
    words = ["python", *(os.path.relpath(word) if os.path.isfile(word) else word for word in sys.argv)]
    lines = [
        f"machine: {cpu_model()}, {cores()} cores, {torch.get_num_threads()} threads",
        f"versions: python {platform.python_version()}, torch {torch.__version__}",
        f"command: {shlex.join(words)}",
    ]
    return [*lines, *busy()]


def print_machine() -> None:
    print(*report_machine(), sep="\n", end="\n\n", flush=True)


def busy() -> list[str]:
    """A warning if others use the machine: the load average of the last minute, which this process has hardly touched yet."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load < 0.3:
        return []
    return [f"WARNING: the load average is {load:.2f}; something else is running, and these timings are not to be trusted"]


def cpu_model() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds(call: Callable[[], object], repeat: int = 1) -> float:
    """Seconds of one call, over ``repeat`` of them."""
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat


@dataclass(frozen=True)
class Way:
    """One of the things that are compared: what to call, and the threads that an op may use meanwhile."""

    call: Callable[[], object]
    threads: int | None = None

    def sample(self, repeat: int) -> float:
        """Seconds of one call, after one that nobody times: it sets up the threads and fills the caches."""
        torch.set_num_threads(self.threads or torch.get_num_threads())
        self.call()
        return seconds(self.call, repeat)


def alternate(ways: Mapping[str, Way], rounds: int, shortest: float = SHORTEST) -> dict[str, list[float]]:
    """Seconds of each way in each round; the ways take turns, forwards and backwards: A B B A A B.

    Args:
        ways: what to time, by name.
        rounds: how often each has its turn.
        shortest: seconds that a turn lasts at least.
    """
    before = torch.get_num_threads()
    found: dict[str, list[float]] = {name: [] for name in ways}
    repeats = {name: max(1, round(shortest / max(way.sample(1), 1e-7))) for name, way in ways.items()}
    gc.collect()
    gc.disable()  # a collection belongs to nobody
    try:
        for number in range(rounds):
            for name in list(ways) if number % 2 == 0 else reversed(ways):
                found[name].append(ways[name].sample(repeats[name]))
    finally:
        gc.enable()
        torch.set_num_threads(before)
    return found


@dataclass(frozen=True)
class Ratio:
    """A quotient of two series of timings: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(above: Sequence[float], below: Sequence[float]) -> Ratio:
        """Round by round, ``above / below``."""
        values = [a / b for a, b in zip(above, below, strict=True)]
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return Ratio(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f})"


def same_weights(model: nn.Module) -> nn.Module:
    """A copy of a model that reads the same memory. Of two copies of weights, the one that was read last is in the cache."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def milliseconds(values: Sequence[float]) -> str:
    """The median, in milliseconds, to three digits."""
    return f"{statistics.median(values) * 1e3:.3g}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table whose columns line up."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def job(script: str, ranks: int, *asked: object) -> Any:
    """What the first rank of a job writes: a script on several ranks of one thread, called with ``--job`` and what is asked.

    Args:
        script: the file that runs.
        ranks: processes on this machine.
        asked: what `json` takes; the script is given a list of it, and behind it the file that `written` is to write.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        here = [str(Path(script).resolve()), "--job", json.dumps([*asked, str(out)])]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *here]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL, timeout=600)
        return json.loads(out.read_text())


def written(out: str, found: object) -> None:
    """End a rank of a job, of which the first one leaves what it found."""
    import torch.distributed as dist

    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
