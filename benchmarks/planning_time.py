"""How long does planning take, beside the tracing that any compiler has to do? On graphs of 10^2 to 10^5 ops.

    python benchmarks/planning_time.py
    python benchmarks/planning_time.py --quick
    python benchmarks/planning_time.py --max-ops 100000        the view without examples only past 10^4

The first table has `partition` without its check beside torch.compile's tracer alone, with a backend that does nothing, on
sixteen MLP towers; what is ours is the difference, and its aim is 0.3 ms an op. The second is the plan of the view without
example inputs. The third splits what is ours by stage, with clocks around the functions that `compile.py` calls.
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

from partitioner import compile as flow
from partitioner import lower, partition
from partitioner.backends import BACKENDS
from partitioner.frontend.analysis import build
from partitioner.lower import room
from partitioner.plans import make_plan
from partitioner.runtime.programs import Programs
from partitioner.spec.discover import build_machine
from partitioner.spec.spec import Spec

AIM = 0.3
TOWERS = 16
WIDTH = 4
MOST_FOR_TRACING = 10_000  # the tracer takes about three milliseconds for an op
DEVICES = ["cpu:0", "cpu:1"]


class Towers(nn.Module):
    """Sixteen towers of linear layers and ReLUs, summed at the end; about ``ops`` ops."""

    def __init__(self, ops: int) -> None:
        super().__init__()
        depth = max(1, ops // TOWERS // 2)
        self.towers = nn.ModuleList(
            nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
            for _ in range(TOWERS)
        )

    def forward(self, x: Tensor) -> Tensor:
        total = self.towers[0](x)
        for tower in self.towers[1:]:
            total = total + tower(x)
        return total


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    print_machine()
    traced, stages = [], []
    viewed = [view(ops) for ops in sizes(options.max_ops)]  # first: what the tracer leaves behind is in every collection
    x = torch.randn(2, WIDTH)
    for ops in sizes(min(options.max_ops, MOST_FOR_TRACING)):
        model = Towers(ops).eval()
        found = alternate(ways(model, x), options.rounds if ops < 10_000 else 1, shortest=0.0)
        alone, ours = found.values()
        spent, total = split(model, x)
        each = sum(spent.values()) / total * 1e3
        traced.append([total, *map(milliseconds, found.values()), Ratio.of(ours, alone), f"{each:.2f}"])
        stages.append([total, *(f"{value * 1e3:.3g}" for value in spent.values())])
    head = ["ops", "tracer alone ms", "partition ms", "partition / alone", f"ours, ms an op (aim {AIM})"]
    print(table(head, traced), end="\n\n")
    print("The view without examples, planned, in seconds:\n")
    print(table(["ops", "seconds"], viewed), end="\n\n")
    print("What is ours of one call, by stage, in milliseconds:\n")
    print(table(["ops", *STAGES, "other"], stages))


def view(ops: int) -> list[Any]:
    """Ops and seconds of a plan without example inputs."""
    model, start = Towers(ops).eval(), time.perf_counter()
    plan = make_plan(model, None, build_machine(Spec(), DEVICES), Spec())
    return [len(plan.graph.ops), f"{time.perf_counter() - start:.2f}"]


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


def ways(model: nn.Module, x: Tensor) -> dict[str, Way]:
    return {
        "alone": Way(lambda: trace_alone(model, x)),
        "partition": Way(lambda: partition(model, DEVICES, example_inputs=x, check=False, tune=False)),
    }


def trace_alone(model: nn.Module, x: Tensor) -> None:
    """Torch.compile's tracer, and a backend that does nothing. The code object is a new one each time, as ours is."""
    namespace: dict[str, Any] = {}
    exec(f"def forward(self, x):\n    return self(x)\n# {time.perf_counter_ns()}", namespace)
    torch._dynamo.optimize(lambda module, inputs: module.forward)(namespace["forward"])(model, x)


# By stage -------------------------------------------------------------------------------------------------------------

LOWERINGS = [lowering.__name__ for lowering in lower.LOWERINGS]
STAGES: dict[str, tuple[tuple[ModuleType, str], ...]] = {
    "observe": ((build, "observe"),),
    "rewrite": ((build, "as_plain_calls"), (build, "with_regions"), (build, "without_switches")),
    "constrain": ((flow, "constrain"),),
    "estimate": ((flow, "estimate"),),
    "coarsen": ((flow, "coarsen"),),
    "pose": ((flow, "pose"),),
    "place": ((flow, "decided"),),
    "schedule": ((flow, "schedule"),),
    **dict.fromkeys(LOWERINGS, ()),
    "verify": ((room, "verify_plan"),),
    "emit": (),
}
"""The functions whose time is a stage's. Those without any are entries of tables, and wrapped there."""


def split(model: nn.Module, x: Tensor) -> tuple[dict[str, float], int]:
    """Seconds of each stage in what is ours of one `partition`, of all that is in none; and the number of ops."""
    spent = dict.fromkeys([*STAGES, "other", "all"], 0.0)
    with clocks(spent):
        parallel = partition(model, DEVICES, example_inputs=x, check=False, tune=False)
    spent["other"] = spent.pop("all") - sum(spent.values())
    return spent, len(parallel.graph.ops)


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
        stack.enter_context(mock.patch.object(Programs, "receive", timed("all", Programs.receive)))
        lowerings = tuple(timed(lowering.__name__, lowering) for lowering in lower.LOWERINGS)
        stack.enter_context(mock.patch.object(lower, "LOWERINGS", lowerings))
        made = {name: timed("emit", function) for name, function in BACKENDS.items()}
        stack.enter_context(mock.patch.dict(BACKENDS, made))
        yield


if __name__ == "__main__":
    main()
