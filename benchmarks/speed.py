"""How fast is the emitted module on CPU lanes, beside everything else that a CPU offers, and beside what lanes can give?

    python benchmarks/speed.py
    python benchmarks/speed.py --quick
    python benchmarks/speed.py --models towers-1024,googlenet --batches 1,8 --rounds 41
    python benchmarks/speed.py --ways torch.compile,ours
    python benchmarks/speed.py --ablation --models nasnet

Beside the model's own forward with one thread, two, ... all: torch.compile (default mode, whole model), ``torch.jit.fork`` by
hand where the model is written as branches, ONNX Runtime where it is installed, and four times `partition`: as it is, with
``tune=True``, and with the tasks compiled by TorchScript and by Inductor. Every result is held against eager's first.

Speedups are ratios within a round, over the best of eager. *W* is the time of all ops and *CP* that of their critical path,
each op alone on one thread: so *limit*, the lanes or W / CP if that is less, bounds the speedup over one thread, unless tasks
are compiled, which makes the ops themselves shorter. *share* is the part of the limit that `partition` reaches as it is.

A training step is in `training.py`. Rows are a model and a batch size.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from _common import Ratio, Way, alternate, milliseconds, print_machine, table
from _speed_limit import Limit, limit_of
from _speed_models import MODELS
from _speed_ways import OTHERS, OURS, Contender, Different, Inputs, Ours, Unavailable, contenders, eager_names, ours, ready
from torch import Tensor, nn

from partitioner import partition

Seconds = Mapping[str, Sequence[float]]

QUICK = {"models": ["towers-64", "ensemble-2"], "batches": [1], "rounds": 3, "ways": ["jit.fork", "ours"]}

EAGER, PROGRAM, LANES, TASKS = "best of eager", "program on one lane", "lanes", "Inductor tasks"
ABLATION: dict[str, tuple[str, dict[str, Any]]] = {
    PROGRAM: (EAGER, {"policy": "single"}),
    LANES: (PROGRAM, {}),
    "TorchScript tasks": (LANES, {"compile_tasks": "torchscript"}),
    "equal ops as one": (LANES, {"compile_tasks": "batched"}),
    "frozen weights": (LANES, {"compile_tasks": "frozen"}),
    TASKS: (LANES, {"compile_tasks": "inductor"}),
    "tuned": (LANES, {"tune": True}),
    "tuned Inductor tasks": (TASKS, {"compile_tasks": "inductor", "tune": True}),
}
"""What `partition` is given step by step, and what each step is added to."""


class Notes:
    """What is missing in the tables and why, each reason once with the rows that it concerns."""

    def __init__(self) -> None:
        self.rows: defaultdict[str, list[str]] = defaultdict(list)
        self.different = False

    def add(self, row: str, why: str, different: bool = False) -> None:
        """Note it; a result that differs from eager's is the one thing that must not be."""
        self.rows[why].append(row)
        self.different |= different

    def lines(self) -> list[str]:
        """A line for each reason."""
        return [f"{why} ({'; '.join(rows)})" for why, rows in self.rows.items()]


@dataclass(frozen=True)
class Row:
    """One model with one batch size, raced.

    Args:
        name: of model and batch.
        seconds: of each way in each round.
        limit: what lanes can give.
        lanes: that `partition`'s plan uses; 0 where it was not asked.
    """

    name: str
    seconds: Seconds
    limit: Limit
    lanes: int

    def fastest(self, names: Sequence[str]) -> str:
        """Of some ways, the one with the least median; ``""`` if there is none of them."""
        there = [name for name in names if name in self.seconds]
        return min(there, key=lambda name: statistics.median(self.seconds[name]), default="")

    def over(self, base: str, name: str) -> Ratio:
        """How many times as fast as ``base``."""
        return Ratio.of(self.seconds[base], self.seconds[name])


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    print_machine()
    notes = Notes()
    with torch.inference_mode():
        if options.ablation:
            for name, batch in chosen(options, notes):
                ablation(name, batch, options, notes)
        else:
            race_all(options, notes)
            print(f"\nGenerated code beside eager:\n\n{overhead(options)}")
    print("", *notes.lines(), sep="\n")
    if notes.different:
        sys.exit("a result differs from eager's")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="two models, no compilers, three rounds: shows that it runs, no more"
    )
    parser.add_argument("--rounds", type=int, help="turns of each side; 9, or 3 with --quick")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--models", type=among(MODELS), help=", ".join(MODELS))
    parser.add_argument("--batches", type=lambda text: [int(word) for word in text.split(",")], help="1,8,64 for every model")
    parser.add_argument("--ways", type=among((*OTHERS, *OURS)), help=f"beside eager: {', '.join((*OTHERS, *OURS))}")
    parser.add_argument("--ablation", action="store_true", help="what each part of it gives, simulated beside measured")
    options = parser.parse_args(words)
    defaults = QUICK if options.quick else {"models": list(MODELS), "rounds": 9, "ways": [*OTHERS, *OURS]}
    for key, value in defaults.items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    return options


def among(known: Collection[str]) -> Callable[[str], list[str]]:
    """Reads names with commas between them, each of which is known."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        if wrong := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: not among {', '.join(known)}")
        return names

    return read


def chosen(options: argparse.Namespace, notes: Notes) -> list[tuple[str, int]]:
    """Models and batch sizes; with a note on what cannot be built here."""
    found = []
    for name in options.models:
        model = MODELS[name]
        if importlib.util.find_spec(model.library) is None:
            notes.add(name, f"{model.library} is not installed")
            continue
        found += [(name, batch) for batch in options.batches or model.batches]
    return found


def built(name: str, batch: int) -> tuple[nn.Module, Inputs]:
    """A model and one call of it, with nothing left of what was compiled for other models."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    case = MODELS[name].case(batch)
    with torch.inference_mode(False):  # as a user's: of weights that are made in that mode nobody counts the writes
        return case.build().eval(), case.inputs()


# The table ------------------------------------------------------------------------------------------------------------


def race_all(options: argparse.Namespace, notes: Notes) -> None:
    """Every row, in two tables; also of the rows so far, if one fails."""
    rows: list[Row] = []
    try:
        for name, batch in chosen(options, notes):
            start = time.perf_counter()
            rows.append(race(name, batch, options, notes))
            print(f"{rows[-1].name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    finally:
        show(rows, options)


def show(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """The tables."""
    eager = list(eager_names(torch.get_num_threads()))
    columns = [*eager, *(way for way in (*OTHERS, *OURS) if way in options.ways)]
    print("Speedup over the best of eager:\n")
    print(table(["model, batch", "1 thread ms", *columns], [speedups(row, eager, columns) for row in rows]))
    if set(options.ways) & set(OURS):
        print("\nBeside the limit, and beside the best of everything else:\n")
        head = ["model, batch", "W ms", "CP ms", "limit", "lanes", "share", "ours over eager", "best of ours", "over eager"]
        print(table([*head, "best other", "best of ours over it"], [beside(row, eager, options.lanes) for row in rows]))


def race(name: str, batch: int, options: argparse.Namespace, notes: Notes) -> Row:
    """Make the ways of one row, and time them in turns."""
    model, inputs = built(name, batch)
    expected = model(*inputs)
    known = contenders(model, inputs, options.lanes, torch.get_num_threads())
    wanted = {way: each for way, each in known.items() if way in options.ways or way not in (*OTHERS, *OURS)}
    ways = made(f"{name}, {batch}", wanted, expected, notes)
    seconds = alternate(ways, options.rounds)
    plain = ways["ours"].call if "ours" in ways else None
    lanes = len(set(plain.parallel.placement.lane.values())) if isinstance(plain, Ours) else 0
    return Row(f"{name}, {batch}", seconds, limit_of(model, inputs), lanes)


def made(row: str, wanted: Mapping[str, Contender], expected: object, notes: Notes) -> dict[str, Way]:
    """The ways that can be made, and a note on every other one."""
    found = {}
    for way, contender in wanted.items():
        try:
            found[way] = ready(contender, expected)
        except (Unavailable, Different) as error:
            notes.add(row, f"no {way}: {error}", isinstance(error, Different))
    return found


def speedups(row: Row, eager: Sequence[str], columns: Sequence[str]) -> list[object]:
    """A line of the first table."""
    best = row.fastest(eager)
    cells = (f"{row.over(best, way).median:.2f}x" if way in row.seconds else "-" for way in columns)
    return [row.name, milliseconds(row.seconds[eager[0]]), *cells]


def beside(row: Row, eager: Sequence[str], lanes: int) -> list[object]:
    """A line of the second table."""
    best, bound = row.fastest(eager), row.limit.speedup(lanes)
    line: list[object] = [row.name, f"{row.limit.work * 1e3:.3g}", f"{row.limit.path * 1e3:.3g}", f"{bound:.2f}x"]
    if "ours" in row.seconds:
        line += [row.lanes, f"{row.over(eager[0], 'ours').median / bound:.0%}", row.over(best, "ours")]
    else:
        line += ["-", "-", "-"]
    mine, other = row.fastest(list(OURS)), row.fastest([*eager, *OTHERS])
    return [*line, mine, row.over(best, mine), other, row.over(other, mine)] if mine else [*line, "-", "-", other, "-"]


# What each part gives -------------------------------------------------------------------------------------------------


def ablation(name: str, batch: int, options: argparse.Namespace, notes: Notes) -> None:
    """One model from eager to everything, a step a line."""
    model, inputs = built(name, batch)
    threads = torch.get_num_threads()
    wanted = {way: Contender(lambda: lambda: model(*inputs), count) for way, count in eager_names(threads).items()}
    for step, (_, choices) in ABLATION.items():
        wanted[step] = Contender(partial(ours, model, inputs, options.lanes, choices), threads)
    ways = made(f"{name}, {batch}", wanted, model(*inputs), notes)
    row = Row(f"{name}, {batch}", alternate(ways, options.rounds), limit_of(model, inputs), options.lanes)
    print(row.limit.told(row.name, options.lanes), end="\n\n")
    head = ["step", "ms", "simulated ms", f"over the {EAGER}", "over", "what it is added to"]
    print(table(head, [step_line(row, step, way) for step, way in ways.items()]), end="\n\n")


def step_line(row: Row, step: str, way: Way) -> list[object]:
    """A line of an ablation; simulated with the seconds that ops took with one thread."""
    best = row.fastest(list(eager_names(torch.get_num_threads())))
    line: list[object] = [step, milliseconds(row.seconds[step])]
    if not isinstance(way.call, Ours):
        return [*line, "-", row.over(best, step), "-", "-"]
    base = ABLATION[step][0]
    before = best if base == EAGER else base
    gain = row.over(before, step) if before in row.seconds else "-"
    return [*line, f"{row.limit.simulated(way.call.parallel.plan) * 1e3:.3g}", row.over(best, step), gain, base]


# What an op costs -----------------------------------------------------------------------------------------------------


class TinyOps(nn.Module):
    """A thousand ops on one number, one after the other: the kernel is nothing, and all of it is overhead."""

    def __init__(self, count: int = 1000) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = torch.neg(x)
        return x


def overhead(options: argparse.Namespace) -> str:
    """Microseconds of a tiny op in eager, and in a program on one lane."""
    model, x = TinyOps(100 if options.quick else 1000), torch.ones(1)
    parallel = partition(copy.deepcopy(model), ["cpu"], example_inputs=x, policy="single", check=False)
    found = alternate({"eager": Way(lambda: model(x)), "emitted": Way(lambda: parallel(x))}, 3 * options.rounds)
    eager, emitted = (statistics.median(each) / model.count * 1e6 for each in found.values())
    row = [model.count, f"{eager:.3f}", f"{emitted:.3f}", f"{emitted - eager:+.3f}", Ratio.of(found["emitted"], found["eager"])]
    return table(["ops", "eager us an op", "emitted us an op", "difference", "emitted / eager"], [row])


if __name__ == "__main__":
    main()
