"""Two ranks of a tensor axis compute what one process does, each with its part of every layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from jobs.nets import TRAININGS
from jobs.torchrun import start
from torch import Tensor, nn

from partitioner.distributed.tensor.draws import Draws
from partitioner.distributed.tensor.local import Place
from partitioner.distributed.tensor.shards import Shards, sharding_of, shared
from partitioner.distributed.tensor.ways import Ways
from partitioner.distributed.traced.example import example_in
from partitioner.ir.access import SENT, Access
from partitioner.ir.machine import Device
from partitioner.ir.sharding import Placement
from partitioner.ir.shared import Axis, Rule, Sharding
from partitioner.spec.spec import Spec

JOBS = Path(__file__).parent / "jobs"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("shared_out")
    start(2, JOBS / "shared_out.py", folder, timeout=240)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_random_programs_give_what_eager_gives(ranks: list[dict[str, Any]]) -> None:
    """Outputs, gradients and buffers, with rules chosen at random: in-place ops, views, ties, several outputs among them."""
    for rank in ranks:
        assert max(each["apart"] for each in rank["programs"]) < 2e-4
    assert sum(each["parts"] for each in ranks[0]["programs"]) > 30, "hardly anything was shared out"


def test_a_part_of_one_row_has_strides_of_its_own() -> None:
    """With those of the whole, DDP cannot send a buffer; more rows than one, in memory of another order, keep that."""
    forms = {"row": Placement("S", 1), "image": Placement("S", 0)}
    parts = Shards(Sharding(Axis(2), {}, {}), forms, Place(), Draws(torch.device("cpu"), 0))
    assert parts.part("row", torch.zeros(1, 8)).stride() == (4, 1)
    image = torch.zeros(8, 3, 2, 2).to(memory_format=torch.channels_last)
    assert parts.part("image", image).is_contiguous(memory_format=torch.channels_last)


def test_ranks_drop_the_same_of_wholes_and_others_of_parts(ranks: list[dict[str, Any]]) -> None:
    """With generators that were seeded differently, ranks would else drop different elements of what should be one value."""
    one, other = (rank["drops"] for rank in ranks)
    assert one["held"]["up.weight"] == "S(0)"
    assert one["dropped"] == other["dropped"], "both see the same, hidden (gathered) and output"
    for hidden, output in one["dropped"]:
        halves = [[row[:256] for row in hidden], [row[256:] for row in hidden]]
        assert halves[0] != halves[1], "each part has its own"
        for dropped in (*halves, output):
            flat = [each for row in dropped for each in row]
            assert 0.3 < sum(flat) / len(flat) < 0.7
    assert one["dropped"][0] != one["dropped"][1], "another step, other elements"
    assert one["drawn"] and not other["drawn"], "the first rank's generator decides, and goes on"


def test_each_rank_reads_its_parts_from_files(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["weights"]
        assert found["apart"] < 1e-5
        assert found["held"] == found["read"] < 0.6 * found["whole"]


def test_inference(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["forward"] < 1e-4 for rank in ranks)


def test_cross_entropies_over_parts_of_the_classes_are_exact(ranks: list[dict[str, Any]]) -> None:
    """Of one, two and three dimensions, all reductions, smoothed and not, with ignored targets, and logits large enough that
    the largest of all ranks has to be taken off them; gradients included, in double precision."""
    assert all(rank["losses"] < 1e-9 for rank in ranks)
    assert all("a target is none of 8 classes" in rank["outside"] for rank in ranks)


def test_no_logits_pass_where_the_loss_is_the_models_own() -> None:
    """In the graph of one rank: the loss is a summand, and of what passes nothing is as large as the logits."""
    training = TRAININGS["words"]
    example = example_in(training.model(), training.batches()[0], None, 1)
    sharding = sharding_of(example.traced, Axis(2, bandwidth=1e7, latency=1e-6), Device("cpu", "cpu"), Spec())
    (loss,) = (op.name for op in example.traced.graph.ops if op.target == "cross_entropy")
    assert str(sharding.rules[loss]) == "S(1), R -> P", "on a slow link it is worth its two latencies"
    local, _ = shared(example, sharding, Place(), torch.device("cpu"))
    logits = max(op.bytes for op in example.traced.graph.ops)
    sending = [op for op in local.traced.graph.ops if op.exchange]
    assert loss in [op.name for op in sending] and all(op.bytes < logits for op in sending)
    assert Access(SENT, True) in local.traced.graph.by_name[loss].accesses


def test_ops_have_their_ways_under_autocast_and_are_tried_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """All weights were whole there, for autocast keeps what it has cast; and torch logged each try that did not go together."""
    model, rules = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), []
    for on in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            graph, ways = example_in(model, torch.ones(6, 8), None, 1).traced.graph, Ways(2, ())
            rules.append([{str(Rule(*way)) for way in ways.of(graph.nodes[op.name])} for op in graph.ops])
    assert rules[0] == rules[1] and "R, S(0), S(0) -> S(1)" in rules[0][0]
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


class Halved(nn.Module):
    """Ops whose inputs have two dtypes, as autocast allows: what the first one gives, and weights; or one that they refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.wide = nn.Linear(8, 8), nn.Linear(8, 8), nn.Conv1d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            halves = self.wide(self.second(F.gelu(self.first(x))))
            return torch.view_as_complex(halves.unflatten(2, (4, 2))).abs()


def test_parts_have_the_dtypes_that_autocast_gives_them(caplog: pytest.LogCaptureFixture) -> None:
    """Of parts float32 was foreseen, and a stage read 4 bytes where the one before had sent 2. Convolutions were whole."""
    example = example_in(Halved(), torch.ones(4, 8, 8), None, 1)
    sharding = sharding_of(example.traced, Axis(2), Device("cpu", "cpu"), Spec())
    assert str(sharding.rules["wide_conv1d"]) == "S(1), S(1), P -> P"
    local, _ = shared(example, sharding, Place(), torch.device("cpu"))
    known = example.traced.graph.metas
    found = {name: meta.dtype for name, meta in local.traced.graph.metas.items() if name in known}
    assert found == {name: known[name].dtype for name in found} and found["second_linear"] is torch.bfloat16
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def odd_losses() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Cross entropies for which there is no such rule: they are computed of whole logits."""
    weight = torch.rand(8)
    return {
        "weights": lambda x, target: F.cross_entropy(x, target, weight),
        "probabilities": lambda x, target: F.cross_entropy(x, F.one_hot(target, 8).float()),
        "rows": lambda x, target: F.cross_entropy(x, target, reduce=False),
        "odd classes": lambda x, target: F.cross_entropy(x[:, :7], target.clamp(max=6)),
    }


@pytest.mark.filterwarnings("ignore:size_average and reduce args")
@pytest.mark.parametrize("name", odd_losses())
def test_other_losses_are_of_wholes(name: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 8)

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return odd_losses()[name](self.linear(x), target)

    example = example_in(Net(), (torch.ones(6, 4), torch.arange(6)), None, 1)
    sharding = sharding_of(example.traced, Axis(2), Device("cpu", "cpu"), Spec())
    (loss,) = (op.name for op in example.traced.graph.ops if op.target == "cross_entropy")
    assert str(sharding.rules[loss]).endswith("-> R")
