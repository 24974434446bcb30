"""Do two CPU lanes pay? Beside the better of eager with one thread and eager with all; and did the gate choose rightly?

    python benchmarks/cpu_lanes.py
    python benchmarks/cpu_lanes.py --quick
    python benchmarks/cpu_lanes.py --models towers-1024-8,googlenet --rounds 41

*gated* is what `partition` gives: lanes where they are predicted to pay, one lane otherwise. *forced* has lanes whatever is
predicted: no gate, no grain that gathers branches, no price for a hand-off while tasks are placed. A choice is wrong if the
other one was more than 3% faster. Speedups are of the better eager run over the lanes, round by round.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from _common import Ratio, Way, alternate, milliseconds, print_machine, same_weights, table
from _corpus_models import zoo
from torch import Tensor, nn

from partitioner import Parallel, partition
from partitioner.planner.policies.by_level import ByLevel
from partitioner.planner.seconds import serial_seconds
from partitioner.planner.simulate import simulate

BRANCH_GRAIN = 1e-9
"""Every branch is a task, however short."""

DEFAULT_GRAIN = 1e-4
"""What the default hand-off of a CPU lane makes of it; keeps the many small branches of a real network together."""

MATTERS = 1.03


@dataclass(frozen=True)
class Case:
    """A model with its inputs, and the grain with which lanes are forced on it."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    grain: float = BRANCH_GRAIN


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    print_machine()
    rows = [measure(name, options.lanes, options.rounds) for name in options.models]
    head = ["model", "1 thread ms", "all threads ms", "gated ms", "forced ms"]
    head += ["gate chose", "gated speedup", "forced speedup", "predicted, forced", "the choice was"]
    print(table(head, rows))
    wrong = [str(row[0]) for row in rows if row[-1] != "right"]
    print(f"\nwrong choices: {', '.join(wrong) or 'none'}")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three models and three rounds: shows that it runs, no more")
    parser.add_argument("--rounds", type=int, help="turns of each side; 21, or 3 with --quick")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--models", type=lambda text: text.split(","), help=", ".join(CASES))
    options = parser.parse_args(words)
    options.rounds = options.rounds or (3 if options.quick else 21)
    options.models = options.models or (["towers-64-32", "towers-256-64", "lstm"] if options.quick else list(CASES))
    return options


def measure(name: str, lanes: int, rounds: int) -> list[object]:
    """One line of the table."""
    case = CASES[name]
    torch.manual_seed(0)
    model, inputs = case.build().eval(), case.inputs()
    gated, forced = plain_lanes(model, inputs, lanes), forced_lanes(model, inputs, lanes, case.grain)
    threads = torch.get_num_threads()
    ways = {
        "one": Way(lambda: model(*inputs), threads=1),
        "all": Way(lambda: model(*inputs), threads=threads),
        "gated": Way(lambda: gated(*inputs), threads=threads),
        "forced": Way(lambda: forced(*inputs), threads=threads),
    }
    with torch.inference_mode():
        found = alternate(ways, rounds)
    best = min((found["one"], found["all"]), key=statistics.median)
    used = len(set(gated.placement.lane.values()))
    return [
        name,
        *map(milliseconds, found.values()),
        f"{used} lane{'s' * (used > 1)}",
        Ratio.of(best, found["gated"]),
        Ratio.of(best, found["forced"]),
        f"{predicted(forced, gated):.2f}x",
        judgement(used > 1, Ratio.of(best, found["gated"]).median, Ratio.of(best, found["forced"]).median),
    ]


def plain_lanes(model: nn.Module, inputs: tuple[Tensor, ...], lanes: int) -> Parallel:
    devices = [f"cpu:{number}" for number in range(lanes)]
    return partition(same_weights(model), devices, example_inputs=inputs, check=False)


def forced_lanes(model: nn.Module, inputs: tuple[Tensor, ...], lanes: int, grain: float) -> Parallel:
    spec = {"devices": [{"device": "cpu", "lanes": lanes, "handoff": 0}], "grain": grain, "policy": ByLevel()}
    return partition(same_weights(model), example_inputs=inputs, spec=spec, check=False)


def predicted(forced: Parallel, gated: Parallel) -> float:
    """The speedup that the cost model expects of the forced plan, hand-offs at their usual price."""
    plan = forced.plan
    costs = replace(plan.costs, machine=gated.plan.machine)
    serial = serial_seconds(gated.plan.costs, gated.plan.machine.devices[0])
    return serial / simulate(plan.program, costs, plan.tasks, plan.placement).makespan


def judgement(lanes: bool, gated: float, forced: float) -> str:
    """Whether the gate chose what is faster, within what matters."""
    if lanes and gated * MATTERS < 1:
        return "wrong: serial is faster"
    if not lanes and forced > MATTERS:
        return "wrong: lanes are faster"
    return "right"


# The models -----------------------------------------------------------------------------------------------------------


class Towers(nn.Module):
    """Branches that start at one input and are summed at the end."""

    def __init__(self, make: Callable[[], nn.Module], count: int = 2) -> None:
        super().__init__()
        self.towers = nn.ModuleList(make() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        total = self.towers[0](x)
        for tower in self.towers[1:]:
            total = total + tower(x)
        return total


class Last(nn.Module):
    """An LSTM's last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def linear_towers(width: int, batch: int, join: Callable[..., nn.Module] = Towers) -> Case:
    """Two equal branches of eight linear layers with ReLU."""

    def tower() -> nn.Module:
        return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())))

    return Case(lambda: join(tower), lambda: (torch.randn(batch, width),))


def convolution_towers(channels: int, side: int, batch: int, join: Callable[..., nn.Module] = Towers) -> Case:
    """Two equal branches of four convolutions with ReLU."""

    def tower() -> nn.Module:
        layers = (layer for _ in range(4) for layer in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()))
        return nn.Sequential(*layers)

    return Case(lambda: join(tower), lambda: (torch.randn(batch, channels, side, side),))


def network(name: str, side: int) -> Case:
    def build() -> nn.Module:
        model: nn.Module = zoo.import_torchvision().models.get_model(name, weights=None, init_weights=False)
        return model

    return Case(build, lambda: (torch.randn(1, 3, side, side),), DEFAULT_GRAIN)


SIZES = ((64, 32), (256, 1), (256, 64), (1024, 1), (1024, 8), (1024, 256))
CASES: dict[str, Case] = {
    **{f"towers-{width}-{batch}": linear_towers(width, batch) for width, batch in SIZES},
    "lstm": Case(lambda: Towers(lambda: Last(128)), lambda: (torch.randn(4, 32, 128),)),
    "conv-16-32-1": convolution_towers(16, 32, 1),
    "conv-64-56-8": convolution_towers(64, 56, 8),
    "googlenet": network("googlenet", 224),
    "inception_v3": network("inception_v3", 299),
}

if __name__ == "__main__":
    main()
