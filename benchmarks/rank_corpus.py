"""Do ranks train the models of the corpus as one process does, under every kind of mesh?

    python benchmarks/rank_corpus.py
    python benchmarks/rank_corpus.py --family transformers --every 4
    python benchmarks/rank_corpus.py --models transformers/bert,transformers/clip --meshes pipeline,tensor

Two ranks on gloo. Each model is given a loss that weighs every number of its results, makes a step over the ranks, and one of
SGD; what `save` writes then is loaded into a plain model, whose weights are held against those of one process. A model is
*equal* if the loss is so to 1e-4 and no weight has moved otherwise by more than 0.2% of the largest gradient; *refused* with
a reason of our own; or *different*, or an error, and then the script ends with 1. Nothing here is a time, so it does not
matter what else runs.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _common import print_machine, table
from _corpus_models import CORPUS, Entry
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

ROWS, RANKS, RATE = 4, 2, 0.1

MESHES: dict[str, dict[str, Any]] = {
    "pipeline": {"mesh": {"pipeline": RANKS}, "microbatches": 2, "schedule": "1f1b"},
    "tensor": {"mesh": {"tensor": RANKS}},
    "fsdp2": {"mesh": {"data": RANKS}, "wrap": "fsdp2"},
    "ddp": {"mesh": {"data": RANKS}, "wrap": "ddp"},
    "branch": {"mesh": {"branch": RANKS}},
}


def main(words: Sequence[str] | None = None) -> None:
    """Train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), help="names, with commas between")
    parser.add_argument("--family", default="transformers", help="of the corpus: user, transformers, torchvision, ...")
    parser.add_argument("--every", type=int, default=1, help="take each so manieth model of the family")
    parser.add_argument("--meshes", type=lambda text: text.split(","), default=list(MESHES), help="of the five")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.job:
        job(Path(options.job), options.models[0], options.meshes)
        return
    print_machine()
    family = [name for name, each in CORPUS.items() if each.family == options.family and each.installed and not each.large]
    names = options.models or family[:: options.every]
    report({name: of_job(name, options.meshes) for name in names}, options.meshes)


def of_job(name: str, meshes: Sequence[str]) -> dict[str, str]:
    """What the first rank of a job writes of a model, under each mesh; an error where it did not come to that."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        here = [str(Path(__file__).resolve()), "--job", str(out), "--models", name, "--meshes", ",".join(meshes)]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), *here]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=1800, **quiet)  # type: ignore[call-overload]
        told: dict[str, str] = json.loads(out.read_text()) if out.exists() else {}
    return dict.fromkeys(meshes, "error: the job ended") | told


def report(found: Mapping[str, Mapping[str, str]], meshes: Sequence[str]) -> None:
    """Print how many models are what under each mesh, and those that are not equal."""
    kinds = ("equal", "refused", "eager fails", "different", "error")
    counts = {mesh: Counter(each[mesh].partition(":")[0] for each in found.values()) for mesh in meshes}
    print(table(("mesh", *kinds), [[mesh, *(counts[mesh][kind] for kind in kinds)] for mesh in meshes]), "\n")
    for name, verdicts in found.items():
        for why in dict.fromkeys(each for each in verdicts.values() if each != "equal"):
            print(f"{name}, {', '.join(mesh for mesh, each in verdicts.items() if each == why)}: {why}")
    if any(counts[mesh][kind] for mesh in meshes for kind in ("different", "error")):
        sys.exit(1)


def job(out: Path, name: str, meshes: Sequence[str]) -> None:
    """What one rank does."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    args, kwargs = CORPUS[name].inputs(batch=ROWS, seed=0)
    try:
        expected = step_of(CORPUS[name].build(), args, kwargs)
    except Exception as error:  # the model's own: some cannot be trained in eval mode, or not with four rows
        out.write_text(json.dumps(dict.fromkeys(meshes, f"eager fails: {type(error).__name__}")))
        return
    verdicts = {}
    for mesh in meshes:
        verdicts[mesh] = verdict_of(CORPUS[name], args or kwargs, expected, mesh, out.parent)
        if int(os.environ["RANK"]) == 0:
            out.write_text(json.dumps(verdicts))
    dist.barrier()
    dist.destroy_process_group()


def step_of(model: nn.Module, args: Any, kwargs: Any) -> tuple[float, float, dict[str, Tensor]]:
    """The loss of one process, its largest gradient, and what its model is after a step."""
    loss = weighed(model(*args, **kwargs))
    loss.backward()
    largest = max((float(each.grad.abs().max()) for each in model.parameters() if each.grad is not None), default=1.0)
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    return float(loss), largest, copy.deepcopy(model.state_dict())


def weighed(output: Any) -> Tensor:
    """A mean over rows, in which each number of a row has a weight of its own."""
    found = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.requires_grad]
    return sum((_weighed(each.float()) for each in found), torch.zeros(())) / len(found)


def _weighed(each: Tensor) -> Tensor:
    if each.dim() < 2:
        return each.square().mean()
    weights = torch.cos(1.7 * torch.arange(each[0].numel(), dtype=torch.float32)).view(each.shape[1:])
    return (each * weights).tanh().mean() + 0.1 * each.square().mean()


def verdict_of(entry: Entry, given: Any, expected: tuple[float, float, dict[str, Tensor]], mesh: str, folder: Path) -> str:
    """Whether ranks come to the same."""
    import torch.distributed as dist

    from partitioner import PartitionerError, distributed

    spec = {"distributed": MESHES[mesh]}
    share = ROWS // MESHES[mesh]["mesh"].get("data", 1)

    def part_of(number: int) -> Any:
        own = slice(number * share, (number + 1) * share)
        return tree_map(lambda leaf: leaf[own] if isinstance(leaf, Tensor) and leaf.shape[:1] == (ROWS,) else leaf, given)

    try:
        part, step = distributed.parallelize(entry.build(), part_of(0), spec, weighed)
        loss = float(step(part_of(step.ranks.data if share < ROWS else 0)))
        torch.optim.SGD(part.parameters(), lr=RATE).step()
        checkpoint = folder / f"{entry.name.replace('/', '-')}-{mesh}"
        distributed.save(checkpoint, part, None, 1)
        dist.barrier()
        plain = entry.build()
        distributed.load(distributed.latest(checkpoint), plain)
    except (PartitionerError, SystemExit) as error:  # on other ranks than the first, silence
        return f"refused: {error}"
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"
    return held_against(loss, plain, *expected)


def held_against(loss: float, plain: nn.Module, expected: float, largest: float, state: Mapping[str, Tensor]) -> str:
    """Whether a loss, and a model that has learnt of it, are what they are of one process."""
    now = plain.state_dict()
    floats = [name for name, each in state.items() if isinstance(each, Tensor) and each.is_floating_point() and each.numel()]
    gaps = {name: float((now[name] - state[name]).abs().nan_to_num(nan=0.0).max()) / RATE / largest for name in floats}
    worst = max(gaps, key=gaps.__getitem__, default="")
    if abs(loss - expected) <= 1e-4 * abs(expected) + 1e-9 and gaps.get(worst, 0.0) <= 2e-3:
        return "equal"
    return f"different: the loss is {loss:g} and not {expected:g}, {worst} differs by {gaps.get(worst, 0.0):.1%}"


if __name__ == "__main__":
    main()
