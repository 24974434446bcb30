"""Does backward on CPU lanes pay? One training step beside the better of eager with one thread and eager with all.

    python benchmarks/training.py
    python benchmarks/training.py --quick
    python benchmarks/training.py --models towers-1024-8,googlenet --rounds 41

A step is a forward, a backward from the sum of the result, and setting gradients to none. *Forward on lanes* leaves backward to
autograd, which runs all of it on one thread, with all of the CPU's threads inside its ops; *both on lanes* is
``backward="lanes"``. Lanes are forced on models for which they are not predicted to pay. Speedups are of the better eager run,
round by round. *In CPU time* is what eager with one thread takes over what the busiest thread takes with lanes, the least of
all rounds each: the speedup if nobody ever waited, and the one figure that others on the machine hardly change. Memory is
what a process grows by in three steps, beside its growth with eager, with two threads each.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import Ratio, Way, alternate, milliseconds, print_machine, table
from cpu_lanes import DEFAULT_GRAIN, Case, Last, convolution_towers, linear_towers, network
from torch import Tensor, nn

from partitioner import Parallel, partition
from partitioner.backends.workers import POOL
from partitioner.planner.policies.by_level import ByLevel


class Towers(nn.Module):
    """Branches that start at one input and are joined at the end."""

    def __init__(self, make: Callable[[], nn.Module], count: int = 2) -> None:
        super().__init__()
        self.towers = nn.ModuleList(make() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([tower(x) for tower in self.towers], 1)


SIZES = ((64, 32), (256, 1), (256, 64), (1024, 1), (1024, 8), (1024, 64))
STEPS: dict[str, Case] = {
    **{f"towers-{width}-{batch}": linear_towers(width, batch, Towers) for width, batch in SIZES},
    "lstm": Case(lambda: Towers(lambda: Last(128)), lambda: (torch.randn(4, 32, 128),)),
    "conv-16-32-1": convolution_towers(16, 32, 1, Towers),
    "conv-16-32-8": convolution_towers(16, 32, 8, Towers),
    "googlenet": Case(network("googlenet", 224).build, lambda: (torch.randn(2, 3, 224, 224),), DEFAULT_GRAIN),
}


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    if options.grow:
        print(growth(options.models[0], options.grow, options.lanes))
        return
    print_machine()
    rows = [measure(name, options.lanes, options.rounds) for name in options.models]
    head = ["model", "1 thread ms", "all threads ms", "forward on lanes", "both on lanes", "in CPU time"]
    head += ["backward of these", "MiB", "over eager"]
    print(table(head, rows))


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two models and three rounds: shows that it runs, no more")
    parser.add_argument("--rounds", type=int, help="turns of each side; 21, or 3 with --quick")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument(
        "--grow", choices=["eager", "autograd", "lanes"], help="print what one process grows by, and nothing else"
    )
    parser.add_argument("--models", type=lambda text: text.split(","), help=", ".join(STEPS))
    options = parser.parse_args(words)
    options.rounds = options.rounds or (3 if options.quick else 21)
    options.models = options.models or (["towers-64-32", "towers-256-64"] if options.quick else list(STEPS))
    return options


def measure(name: str, lanes: int, rounds: int) -> list[object]:
    """One line of the table."""
    case = STEPS[name]
    torch.manual_seed(0)
    model, inputs = case.build().train(), case.inputs()
    forward, both = (on_lanes(model, inputs, lanes, case.grain, backward) for backward in ("autograd", "lanes"))
    threads = torch.get_num_threads()
    ways = {
        "one": Way(step(model, inputs), threads=1),
        "all": Way(step(model, inputs), threads=threads),
        "forward": Way(step(forward, inputs), threads=threads),
        "both": Way(step(both, inputs), threads=threads),
    }
    found = alternate(ways, rounds)
    best = min((found["one"], found["all"]), key=statistics.median)
    return [
        name,
        milliseconds(found["one"]),
        milliseconds(found["all"]),
        Ratio.of(best, found["forward"]),
        Ratio.of(best, found["both"]),
        f"{in_cpu_time(step(model, inputs), step(both, inputs), rounds):.2f}x",
        who(both),
        *memory(name, lanes),
    ]


def on_lanes(model: nn.Module, inputs: tuple[Tensor, ...], lanes: int, grain: float, backward: str) -> Parallel:
    """A copy of a model on lanes, whatever that is predicted to cost."""
    spec = {"devices": [{"device": "cpu", "lanes": lanes, "handoff": 0}], "grain": grain, "policy": ByLevel()}
    return partition(copy.deepcopy(model), example_inputs=inputs, spec=spec, check=False, backward=backward)


def step(model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], None]:
    """A training step without its optimizer."""

    def call() -> None:
        result: Any = model(*inputs)
        result = result if isinstance(result, Tensor) else result[0]
        result.sum().backward()
        model.zero_grad()

    return call


def in_cpu_time(eager: Callable[[], None], lanes: Callable[[], None], rounds: int) -> float:
    """CPU seconds of a step of eager with one thread, over those of the busiest thread of a step on lanes."""
    clocks = [time.pthread_getcpuclockid(one.thread.ident) for one in POOL.workers] + [time.CLOCK_THREAD_CPUTIME_ID]
    before, alone, shared = torch.get_num_threads(), [], []
    for _ in range(rounds):
        torch.set_num_threads(1)
        alone.append(max(_spent(clocks, eager)))
        torch.set_num_threads(before)
        shared.append(_spent(clocks, lanes))
    return min(alone) / max(map(min, zip(*shared, strict=True)))


def _spent(clocks: Sequence[int], call: Callable[[], None]) -> list[float]:
    """CPU seconds that each thread spends on a call, after one that nobody times."""
    call()
    start = [time.clock_gettime(clock) for clock in clocks]
    call()
    return [time.clock_gettime(clock) - one for clock, one in zip(clocks, start, strict=True)]


def who(parallel: Parallel) -> str:
    """Where backward ran, in the words of the summary."""
    lines = parallel._partitioner_programs.summary().splitlines()
    line = next((line for line in lines if "backward:" in line), "backward: one lane")
    return line.partition("backward: ")[2]


def growth(name: str, way: str, lanes: int) -> int:
    """Bytes by which this process grows in three steps, at most."""
    case = STEPS[name]
    torch.manual_seed(0)
    model, inputs = case.build().train(), case.inputs()
    if way != "eager":
        model = on_lanes(model, inputs, lanes, case.grain, way)
    call = step(model, inputs)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _resident("VmRSS")
    for _ in range(3):
        call()
    return _resident("VmHWM") - before


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def memory(name: str, lanes: int) -> list[str]:
    """What a process with lanes grows by, and that over eager's growth."""
    command = [sys.executable, __file__, "--models", name, "--lanes", str(lanes), "--grow"]
    grown = [
        int(subprocess.run([*command, way], capture_output=True, text=True, check=True).stdout) for way in ("eager", "lanes")
    ]
    return [f"{grown[1] / 2**20:.0f}", f"{grown[1] / grown[0]:.2f}x"]


if __name__ == "__main__":
    main()
