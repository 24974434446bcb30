"""torchrun shared_out.py OUT: what two ranks of a tensor axis compute, beside one process; each rank writes OUT/rank<N>.json.

programs    random programs, with rules chosen at random, so that parts, summands and wholes meet in all ways
drops       dropout of wholes and of parts
weights     a model on the meta device, whose parts are read from a file
forward     inference
losses      cross entropies over parts of the classes
outside     one of a target that is no class
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from jobs.nets import TRAININGS
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from partitioner.distributed import inference, parallelize
from partitioner.distributed.ranks import connect
from partitioner.distributed.tensor import shards
from partitioner.distributed.tensor.collectives import cut, total
from partitioner.distributed.tensor.local import Place
from partitioner.distributed.tensor.losses import cross_entropy_of_part
from partitioner.distributed.traced.example import example_in
from partitioner.frontend.check.interpret import interpret
from partitioner.ir.machine import Device
from partitioner.ir.shared import Axis, Rule
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import Spec
from partitioner.testing import KINDS, Recipe, Step, build

SPEC = {"distributed": {"mesh": {"tensor": 2}, "timeout": 60}}
ALIKE = [kind for kind in KINDS if not any(word in kind for word in ("noise", "dropout", "sequential"))]
PROGRAMS = 15


def recipe(draw: random.Random) -> Recipe:
    """A program without random numbers."""
    steps = (
        Step(draw.choice(ALIKE), (draw.randrange(8), draw.randrange(8)), draw.randrange(4)) for _ in range(draw.randint(2, 9))
    )
    sizes = draw.choice([2, 4]), draw.choice([4, 8]), draw.randint(1, 3)
    return Recipe(tuple(steps), *sizes, draw.random() < 0.4, "tuple", draw.randrange(4))


def program(seed: int, place: Place) -> dict[str, Any]:
    """How far outputs, gradients and buffers of a random program are from eager's, and how many ops work on parts."""
    draw = random.Random(seed)
    model = build(recipe(draw))
    eager = copy.deepcopy(model)
    inputs = [tensor.detach() for tensor in model.example_inputs(0)]
    example = example_in(model, tuple(tensor.clone() for tensor in inputs), None, 1)
    rules_of = shards.rules_of

    def at_random(*args: Any) -> tuple[Rule, ...]:
        return tuple(replace(rule, seconds=draw.random() * 1e-3) for rule in rules_of(*args))

    with mock.patch.object(shards, "rules_of", at_random), mock.patch.object(shards, "unlearnt", lambda _: set()):
        sharding = shards.sharding_of(example.traced, Axis(2), Device("cpu", "cpu"), Spec())
    local, parts = shards.shared(example, sharding, place, torch.device("cpu"))
    state = {
        key: parts.part(key, each.detach()).clone().requires_grad_(each.requires_grad)
        for key, each in example.traced.state.items()
    }
    wanted = [leaf for leaf in tree_leaves(eager(*(tensor.clone() for tensor in inputs))) if isinstance(leaf, Tensor)]
    known = local.arguments(inputs) | {name: state[key] for name, key in local.traced.graph.states.items()}
    results = interpret(local.traced.graph, [known[name] for name in local.traced.graph.arguments])
    names = [node.name for node in local.traced.graph.fx.output_node().args[0]]
    named = dict(zip(names, results, strict=True))
    found = [named[name] for name, _ in local.leaves if name in named]
    apart = max(
        float((one.double() - other.double()).abs().max()) for one, other in zip(wanted, found, strict=True) if one.numel()
    )
    for outputs in (wanted, found):
        losses = [(each.double() * (number + 1)).sin().sum() for number, each in enumerate(outputs) if each.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
    held = dict(eager.named_parameters(remove_duplicate=False)) | dict(eager.named_buffers(remove_duplicate=False))
    for key, mine in state.items():
        for one, other in ((held[key], mine), (held[key].grad, mine.grad)) if key in held else ():
            if one is not None and other is not None and one.numel():
                whole = parts.part(key, one.detach()).double()
                apart = max(apart, float((whole - other.detach().double()).abs().max() / (1 + whole.abs().max())))
    return {"apart": apart, "parts": sum(rule.output.kind != "R" for rule in sharding.rules.values())}


class Dropping(nn.Module):
    """Dropout of the hidden layer, of which each rank has a part, and of the output, which all have."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 512), nn.Linear(512, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = nn.functional.dropout(torch.relu(self.up(x)) + 1.0, 0.5, self.training)
        output = nn.functional.layer_norm(self.down(hidden), (64,)) + 5.0
        return hidden, nn.functional.dropout(output, 0.5, self.training)


def drops() -> dict[str, Any]:
    """Which elements were dropped in two steps."""
    torch.manual_seed(dist.get_rank())
    x, seen = torch.ones(3, 64), []

    def loss(output: tuple[Tensor, Tensor]) -> Tensor:
        seen.append([(each == 0).tolist() for each in output])
        return output[1].mean()

    model, step = parallelize(Dropping(), x, SPEC, loss)
    before = torch.get_rng_state()
    for _ in range(2):
        step(x)
    drawn = not torch.equal(before, torch.get_rng_state())
    return {"dropped": seen, "drawn": drawn, "held": {key: str(form) for key, form in model.shards.forms.items()}}


def losses(place: Place) -> float:
    """How far cross entropies over parts of the classes, and their gradients, are from those over all of them."""
    draw, apart = torch.Generator().manual_seed(5), 0.0
    options = itertools.product(((8,), (6, 8), (3, 8, 4)), ("mean", "sum", "none"), (0.0, 0.2), (-100, 3), (1.0, 50.0))
    for shape, reduction, smoothing, ignored, scale in options:
        logits = (torch.randn(shape, generator=draw, dtype=torch.float64) * scale).requires_grad_()
        dim = 1 if logits.dim() > 1 else 0
        target = torch.randint(8, shape[:dim] + shape[dim + 1 :], generator=draw)
        target = target if target.dim() else target % 3
        mine = cut(logits.detach(), dim, 1, 2, place.rank).clone().requires_grad_()
        whole = cross_entropy(logits, target, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing)
        part = cross_entropy_of_part(mine, target, ignored, reduction, smoothing, 8, place.rank, place.group)
        found = total(part.detach(), place.group)
        weight = torch.randn(whole.shape, generator=draw, dtype=torch.float64)
        (whole * weight).sum().backward()
        (part * weight).sum().backward()
        wanted = cut(logits.grad, dim, 1, 2, place.rank)
        apart = max(apart, *(float((a - b).abs().max()) for a, b in ((whole.detach(), found), (wanted, mine.grad))))
    return apart


def outside(place: Place) -> str:
    """What is raised for a target that is no class."""
    try:
        cross_entropy_of_part(torch.ones(2, 4), torch.tensor([1, 8]), -100, "mean", 0.0, 8, place.rank, place.group)
    except RuntimeError as error:
        return str(error)
    return ""


def weights(folder: Path) -> dict[str, Any]:
    """How far a model that was read in parts is from one that was read as a whole, and how much of it a rank holds."""
    training = TRAININGS["tied"]
    whole = training.model()
    if dist.get_rank() == 0:
        save_file(
            {key: each.contiguous() for key, each in whole.state_dict().items() if key != "head.weight"},
            folder / "model.safetensors",
        )
    dist.barrier()
    with torch.device("meta"):
        empty = training.build().eval()
    (ids, target), *_ = training.batches()
    model, step = parallelize(empty, ids, SPEC, training.loss, weights=folder / "model.safetensors")
    read = sum(each.numel() for each in empty.parameters() if not each.is_meta)
    loss = step((ids, target)).item()
    return {
        "apart": abs(loss - training.loss(whole(ids), target).item()),
        "read": read,
        "held": sum(each.numel() for each in model.parameters()),
        "whole": sum(each.numel() for each in whole.parameters()),
    }


def forward() -> float:
    """How far an output is from eager's."""
    training = TRAININGS["unet"]
    model = training.model()
    (image, _), *_ = training.batches()
    _, run = inference(model, image, SPEC)
    return float((run(image) - model(image)).abs().max())


def main(folder: Path) -> None:
    """Do all of it."""
    ranks = connect(DistributedSpec(mesh={"tensor": 2}, timeout=60))
    place = Place(ranks.tensor, ranks.mesh.get_group("tensor").group_name)
    found = {"programs": [program(seed, place) for seed in range(PROGRAMS)], "drops": drops()}
    found |= {"weights": weights(folder), "forward": forward(), "losses": losses(place), "outside": outside(place)}
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
