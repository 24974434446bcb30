"""Is a model that nobody chose for it ever slower on CPU lanes than as it is? All of the corpus, as `partition` gives it.

    python benchmarks/zoo_speed.py
    python benchmarks/zoo_speed.py --families transformers --rounds 15
    python benchmarks/zoo_speed.py --models transformers/bert,user/dlrm
    python benchmarks/zoo_speed.py --training --families user

Both sides may use all threads, on the corpus' own small inputs: a call under `torch.no_grad`, or with ``--training`` a step,
which is a forward, a backward of the sum of the results, and setting gradients to none. Most of these models are chains, or too
small for lanes to pay: there the answer should be 1.00x or more, for guards and hand-offs cost nothing that is not won back.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from _common import Ratio, alternate, milliseconds, print_machine, same_weights, table
from _corpus_models import CORPUS, Entry
from _speed_ways import Settled
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partitioner import PartitionerError, partition

LANES = ["cpu:0", "cpu:1"]

SLOWER = 0.95
"""A speedup below which a model is listed: what is nearer to 1 is noise, on most machines."""


@dataclass(frozen=True)
class Row:
    """One model, and how it compares; or why it was refused."""

    name: str
    eager: Sequence[float] = ()
    ratio: Ratio | None = None
    shown: str = ""


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    print_machine()
    rows = []
    for name in options.models:
        rows.append(row(CORPUS[name], options.rounds, options.training))
        print(f"{name}: {rows[-1].ratio or rows[-1].shown}", flush=True)
        gc.collect()
    print(report(rows))


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two models and few rounds: shows that it runs, no more")
    parser.add_argument("--rounds", type=int, help="turns of each side; 11, or 3 with --quick")
    parser.add_argument("--families", type=lambda text: text.split(","), default=["user", "transformers"])
    parser.add_argument("--models", type=lambda text: text.split(","), help="names, in the place of families")
    parser.add_argument("--training", action="store_true", help="steps of training, in the place of calls")
    options = parser.parse_args(words)
    options.rounds = options.rounds or (3 if options.quick else 11)
    in_families = [name for name, entry in CORPUS.items() if entry.installed and entry.family in options.families]
    options.models = options.models or (["user/dlrm", "user/early_exit"] if options.quick else in_families)
    return options


def row(entry: Entry, rounds: int, training: bool) -> Row:
    """Time one model. What `partition` refuses is said, and is no result."""
    torch.manual_seed(0)
    model, (args, kwargs) = entry.build().train(training), entry.inputs()
    run = step if training else nn.Module.__call__
    with torch.set_grad_enabled(training):
        try:
            parallel = partition(same_weights(model), LANES, example_inputs=args, example_kwargs=kwargs)
            parallel.train(training)
            threads = torch.get_num_threads()
            sides = {"eager": model, "ours": parallel}
            ways = {name: Settled(partial(run, each, *args, **kwargs), threads) for name, each in sides.items()}
            for way in ways.values():
                way.sample(3)
        except (PartitionerError, RuntimeError) as error:
            return Row(entry.name, shown=f"refused: {str(error).splitlines()[0]}")
        found = alternate(ways, rounds)
    shown = str(parallel).splitlines()[0].partition(": ")[2]
    return Row(entry.name, found["eager"], Ratio.of(found["eager"], found["ours"]), shown)


def step(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """A training step without its optimizer."""
    leaves = [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
    torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])
    model.zero_grad()


def report(rows: Sequence[Row]) -> str:
    """The models that are slower, and how all of them do."""
    timed = sorted(((each.ratio.median, each) for each in rows if each.ratio is not None), key=lambda pair: pair[0])
    slow = [[each.name, milliseconds(each.eager), each.ratio, each.shown] for speedup, each in timed if speedup < SLOWER]
    lines = [table(["slower than eager", "eager ms", "speedup", "what it became"], slow)] if slow else []
    if timed:
        speedups = [speedup for speedup, _ in timed]
        low, middle, high = statistics.quantiles(speedups, n=4) if len(speedups) > 1 else speedups * 3
        at_least = sum(speedup >= 1.0 for speedup in speedups)
        lines.append(
            f"{len(timed)} models: median {middle:.2f}x, quartiles {low:.2f}x and {high:.2f}x; "
            f"{at_least} at least as fast as eager, {len(slow)} below {SLOWER}x"
        )
    return "\n\n" + "\n\n".join([*lines, *(f"{each.name}: {each.shown}" for each in rows if each.ratio is None)])


if __name__ == "__main__":
    main()
