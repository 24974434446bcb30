"""How near are predicted times to measured ones? Whole models on one lane, with one thread and with all.

    python benchmarks/prediction.py
    python benchmarks/prediction.py --quick
    python benchmarks/prediction.py --models resnet18,gpt2 --threads 1 --mode auto --ops 10

Three predictions stand beside each measured time: by the roofline on the figures that are assumed of any machine, by the
roofline on figures that were calibrated here, and by adding up ops that were measured one by one. The model runs on the
caller's thread (policy ``single``), as predicted. Errors are (predicted - measured) / measured; the aim is 15% with measured
ops. A model is timed as an op is: see `partitioner/profile/clock.py`.

Ops are measured afresh in each run, within minutes of the model itself, unless ``--cached`` allows what is on disk. ``--ops``
shows the ops that take longest, predicted and measured.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from _common import print_machine, table
from _corpus_models import zoo
from torch import Tensor, nn

from partitioner import Parallel, partition
from partitioner.ir.cost import Costs
from partitioner.ir.machine import Device, Machine
from partitioner.profile.cache import Cache
from partitioner.profile.calibrate import calibrate
from partitioner.profile.clock import Disturbed, Timing, time_of
from partitioner.profile.profiled import profiled

AIM = 0.15

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    print_machine()
    rows: list[list[object]] = []
    errors: dict[str, float] = {}
    for threads in options.threads:
        core = calibrate(Machine((Device("cpu", "cpu"),))).devices[0].device
        figures = {name: getattr(core, name) for name in ("flops", "bandwidth", "overhead")}
        for name in options.models:
            row, error = compared(name, threads, figures, options)
            rows.append(row)
            if error is not None:
                errors[f"{name} with {threads}"] = error
    head = ["model", "threads", "ops", "measured", "measured ms", "assumed roofline", "calibrated roofline", "measured ops"]
    print(table(head, rows))
    mean = f"{statistics.mean(map(abs, errors.values())):.1%}" if errors else "unknown"
    print(f"\nmean |error| with measured ops: {mean}, of {len(errors)} rows in which others left the cores alone")
    beyond = [f"{name} ({error:+.0%})" for name, error in errors.items() if abs(error) > AIM]
    print(f"beyond {AIM:.0%}: {', '.join(beyond) or 'none'}")


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three models, timed shortly: shows that it runs, no more")
    parser.add_argument("--budget", type=float, help="seconds for which a model is timed; 2, or 0.2 with --quick")
    parser.add_argument(
        "--threads", type=lambda text: [int(word) for word in text.split(",")], default=[1, torch.get_num_threads()]
    )
    parser.add_argument("--models", type=lambda text: text.split(","), help=", ".join(CASES))
    parser.add_argument("--mode", choices=["auto", "all"], default="all", help="which ops to measure")
    parser.add_argument("--cached", action="store_true", help="use what was measured in earlier runs")
    parser.add_argument("--ops", type=int, default=0, help="show so many ops of each model")
    options = parser.parse_args(words)
    options.budget = options.budget or (0.2 if options.quick else 2.0)
    options.models = options.models or (["mlp", "lstm", "gpt2"] if options.quick else list(CASES))
    options.threads = list(dict.fromkeys(options.threads))
    return options


def compared(
    name: str, threads: int, figures: dict[str, float], options: argparse.Namespace
) -> tuple[list[object], float | None]:
    """One line of the table, and the error with measured ops; ``None`` if others used the cores meanwhile."""
    torch.manual_seed(0)
    model, args, kwargs = CASES[name]()
    torch.set_num_threads(threads)
    with torch.inference_mode():
        parallel = partition(
            copy.deepcopy(model), ["cpu"], example_inputs=args, example_kwargs=kwargs, policy="single", check=False
        )
        assumed = parallel.plan.costs
        calibrated = replace(assumed, machine=Machine((replace(assumed.machine.devices[0], **figures),)))
        cache = Cache.default() if options.cached else Cache(None)
        measured = profiled(parallel.graph, assumed, options.mode, cache)
        try:
            timing = time_of(lambda: parallel(*args, **kwargs), budget=options.budget)
        except Disturbed:
            timing = Timing(math.nan, math.inf)
    if options.ops:
        show_ops(measured, calibrated, parallel, threads, options.ops)
    device, count = measured.machine.devices[0], len(parallel.graph.ops)
    known = sum((op.name, device.name, threads) in measured.measured for op in parallel.graph.ops)
    found = [total(costs, parallel, threads) / timing.seconds - 1 for costs in (assumed, calibrated, measured)]
    fair = timing.steady and (options.mode == "auto" or known > 0.9 * count)
    shown = (
        "others ran" if math.isnan(timing.seconds) else f"{timing.seconds * 1e3:.3g}{'' if timing.steady else ' (others ran)'}"
    )
    errors = ("-" if math.isnan(error) else f"{error:+.0%}" for error in found)
    return [name, threads, count, known, shown, *errors], found[-1] if fair else None


def total(costs: Costs, parallel: Parallel, threads: int) -> float:
    """Predicted seconds of a model on one lane."""
    return costs.time((op.name for op in parallel.graph.ops), costs.machine.devices[0], threads)


def show_ops(measured: Costs, calibrated: Costs, parallel: Parallel, threads: int, count: int) -> None:
    """The ops that take longest, and by the calibrated roofline."""
    device: Device = measured.machine.devices[0]
    ops = sorted(parallel.graph.ops, key=lambda op: -measured.op_time(op.name, device, threads))[:count]
    rows = []
    for op in ops:
        known = "" if (op.name, device.name, threads) in measured.measured else "no"
        times = (costs.op_time(op.name, device, threads) * 1e6 for costs in (measured, calibrated))
        rows.append([op.name, ", ".join(map(str, op.outputs)), *(f"{time:.1f}" for time in times), known])
    print(table(["op", "result", "measured us", "calibrated us", "measured"], rows))
    print(*measured.notes, sep="\n")


# The models -----------------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Down twice and up twice, with skips."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def block(inside: int, outside: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())

        self.first, self.second, self.bottom = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up_second, self.up_first = block(6 * width, 2 * width), block(3 * width, width)
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(nn.functional.max_pool2d(first, 2))
        bottom = self.bottom(nn.functional.max_pool2d(second, 2))
        up = self.up_second(torch.cat([second, nn.functional.interpolate(bottom, scale_factor=2)], 1))
        up = self.up_first(torch.cat([first, nn.functional.interpolate(up, scale_factor=2)], 1))
        result: Tensor = self.last(up)
        return result


class Last(nn.Module):
    """An LSTM's last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.lstm(x)[0][:, -1]
        return result


def mlp() -> Case:
    sizes = (784, 1024, 1024, 512, 10)
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers).eval(), (torch.randn(64, 784),), {}


def network(name: str, side: int = 224) -> Callable[[], Case]:
    def build() -> Case:
        model = (
            zoo.import_torchvision().models.get_model(name, weights=None, init_weights=False)
            if name == "googlenet"
            else (zoo.import_torchvision().models.get_model(name, weights=None))
        )
        return model.eval(), (torch.randn(1, 3, side, side),), {}

    return build


def bert() -> Case:
    zoo.import_torchvision()
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    return BertModel(config).eval(), (), {"input_ids": torch.randint(1000, (2, 64))}


def gpt2() -> Case:
    zoo.import_torchvision()
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=1000, n_positions=128, n_embd=256, n_layer=4, n_head=4, use_cache=False)
    return GPT2Model(config).eval(), (), {"input_ids": torch.randint(1000, (2, 64))}


CASES: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "lstm": lambda: (Last(128).eval(), (torch.randn(4, 32, 128),), {}),
    "unet": lambda: (UNet(16).eval(), (torch.randn(1, 3, 128, 128),), {}),
    "resnet18": network("resnet18"),
    "mobilenet": network("mobilenet_v3_small"),
    "googlenet": network("googlenet"),
    "bert": bert,
    "gpt2": gpt2,
}

if __name__ == "__main__":
    main()
