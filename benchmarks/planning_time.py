"""How long does planning take, beside the tracing that any compiler has to do? On graphs of 10^2 to 10^5 ops.

    python benchmarks/planning_time.py
    python benchmarks/planning_time.py --quick
    python benchmarks/planning_time.py --max-ops 100000        symbolic_trace only past 10^4

`partition` with and without its check (two eager calls and two interpreted ones) beside the front end alone, on sixteen MLP
towers. The second table splits one call of `partition` by stage, with clocks around the functions that `compile.py` calls.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from _common import Ratio, Way, alternate, milliseconds, print_machine, table
from torch import Tensor, nn

from partitioner import compile as driver
from partitioner import partition
from partitioner.frontend import trace as tracing
from partitioner.frontend.capture import tracers

TOWERS = 16
WIDTH = 4
MOST_FOR_EXPORT = 10_000  # export takes about half a millisecond for an op
DEVICES = ["cpu:0", "cpu:1"]


class Towers(nn.Module):
    """Sixteen towers of linear layers and ReLUs, summed at the end.

    Args:
        ops: of the graph, about.
        branching: whether forward branches on a shape, which `symbolic_trace` refuses at once and export allows.
    """

    def __init__(self, ops: int, branching: bool) -> None:
        super().__init__()
        depth = max(1, ops // TOWERS // 2)
        self.towers = nn.ModuleList(
            nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
            for _ in range(TOWERS)
        )
        self.branching = branching

    def forward(self, x: Tensor) -> Tensor:
        if self.branching and x.shape[0] < 1:
            return x
        total = self.towers[0](x)
        for tower in self.towers[1:]:
            total = total + tower(x)
        return total


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    print_machine()
    times, stages = [], []
    x = torch.randn(2, WIDTH)
    for front_end in ("symbolic_trace", "export"):
        for ops in sizes(options.max_ops if front_end == "symbolic_trace" else min(options.max_ops, MOST_FOR_EXPORT)):
            model = Towers(ops, branching=front_end == "export").eval()
            found = alternate(ways(front_end, model, x), options.rounds, shortest=0.0)
            alone, bare, checked = found.values()
            times.append([front_end, ops, *map(milliseconds, found.values()), Ratio.of(bare, alone), Ratio.of(checked, alone)])
            stages.append([front_end, ops, *split(model, x)])
    head = ["front end", "ops", "front end alone ms", "partition ms", "checked ms", "partition / alone", "checked / alone"]
    print(table(head, times), end="\n\n")
    print("One checked call by stage, in milliseconds:\n")
    print(table(["front end", "ops", *STAGES, "other"], stages))


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="graphs of up to 1000 ops and two rounds: shows that it runs")
    parser.add_argument("--max-ops", type=int, help="the largest graph; 10000, or 1000 with --quick")
    parser.add_argument("--rounds", type=int, help="turns of each side; 5, or 2 with --quick")
    options = parser.parse_args(words)
    options.max_ops = options.max_ops or (1000 if options.quick else 10_000)
    options.rounds = options.rounds or (2 if options.quick else 5)
    return options


def sizes(most: int) -> list[int]:
    return [10**power for power in range(2, 7) if 10**power <= most]


def ways(front_end: str, model: nn.Module, x: Tensor) -> dict[str, Way]:
    alone = (
        (lambda: torch.fx.symbolic_trace(model))
        if front_end == "symbolic_trace"
        else (lambda: torch.export.export(model, (x,), strict=False))
    )
    return {
        "alone": Way(alone),
        "partition": Way(lambda: partition(model, DEVICES, example_inputs=x, check=False)),
        "checked": Way(lambda: partition(model, DEVICES, example_inputs=x)),
    }


# By stage -------------------------------------------------------------------------------------------------------------

LOWERINGS = [lowering.__name__ for lowering in driver.LOWERINGS]
STAGES: dict[str, tuple[tuple[ModuleType, str], ...]] = {
    "trace": ((tracers, "capture_symbolic"), (tracers, "capture_export")),
    "observe": ((tracing, "build_graph"),),
    "check": ((tracing, "compare"),),
    "constrain": ((driver, "constrain"),),
    "estimate": ((driver, "estimate"),),
    "coarsen": ((driver, "coarsen"),),
    "place": (),
    "schedule": ((driver, "issue_order"), (driver, "schedule")),
    **dict.fromkeys(LOWERINGS, ()),
    "verify": ((driver, "verify"),),
    "emit": (),
}
"""The functions whose time is a stage's. Those without any are entries of tables, and wrapped there."""


def split(model: nn.Module, x: Tensor) -> list[str]:
    """Milliseconds of each stage in one call of `partition`, and of all that is in none."""
    spent = dict.fromkeys(STAGES, 0.0)
    with clocks(spent):
        start = time.perf_counter()
        partition(model, DEVICES, example_inputs=x)
        total = time.perf_counter() - start
    return [f"{value * 1e3:.3g}" for value in (*spent.values(), total - sum(spent.values()))]


@contextlib.contextmanager
def clocks(spent: dict[str, float]) -> Iterator[None]:
    """Meanwhile, add the time of each stage to ``spent``."""

    def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[stage] += time.perf_counter() - start

        return call

    with contextlib.ExitStack() as stack:
        for stage, places in STAGES.items():
            for module, name in places:
                stack.enter_context(mock.patch.object(module, name, timed(stage, getattr(module, name))))
        lowerings = tuple(timed(lowering.__name__, lowering) for lowering in driver.LOWERINGS)
        stack.enter_context(mock.patch.object(driver, "LOWERINGS", lowerings))
        for stage, registry in (("place", driver.POLICIES), ("emit", driver.BACKENDS)):
            made = {name: timed(stage, function) for name, function in registry.items()}
            stack.enter_context(mock.patch.dict(registry, made))
        yield


if __name__ == "__main__":
    main()
