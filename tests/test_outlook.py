"""What is said of a job before there is one: stages, step time, bound, bubble and memory."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from partitioner.cli.main import app
from partitioner.distributed.pipeline.schedules import SCHEDULES, kind_of
from partitioner.distributed.predicted.outlook import outlook
from partitioner.distributed.predicted.prediction import BACKWARD
from partitioner.errors import PlacementError, SpecError
from partitioner.spec.distributed import DistributedSpec

WIDTH = 64
WRAPS = ("none", "ddp", "fsdp2")


def deep(layers: int = 8) -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))


def asked(**fields: object) -> dict[str, object]:
    return {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4, **fields}}


def bare(layers: int) -> nn.Module:
    """Layers of random widths, so that no cut is even."""
    draw = Random(layers)
    widths = [draw.choice((8, 64, 256)) for _ in range(layers + 1)]
    return nn.Sequential(*(nn.Linear(one, other) for one, other in pairwise(widths)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("wrap", WRAPS)
def test_no_schedule_beats_the_bound(name: str, ranks: int, wrap: str) -> None:
    """Of one mesh and number of microbatches the bound is one for all schedules, and every step is longer."""
    kind, model = SCHEDULES[name], bare(9)
    width = next(model.parameters()).shape[1]
    copies = 1 if kind.split and wrap != "none" else 2
    fields = {"mesh": {"data": copies, "pipeline": ranks}, "microbatches": 6, "wrap": wrap, "schedule": name}
    found = outlook(model, torch.ones(6, width), {"distributed": {**fields, "stages_per_rank": 2 if kind.several else 1}})
    assert 0 < found.bound <= found.step * (1 + 1e-9)
    work = (1 + BACKWARD) * sum(found.cut.seconds)
    assert found.bound >= 6 * work / ranks * (1 - 1e-9), "all work, shared out evenly"
    assert sum(found.timeline.busy) == pytest.approx(6 * work) and found.exchange >= 0


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_of_even_stages_takes_what_the_formula_says(ranks: int, microbatches: int) -> None:
    """Equal layers: the published bubble, but for messages, which take some microseconds more."""
    found = outlook(deep(), torch.ones(16, WIDTH), asked(mesh={"pipeline": ranks}, microbatches=microbatches))
    even = max(found.microbatch)
    assert found.microbatch == pytest.approx([even] * ranks)
    silent = (microbatches + ranks - 1) * even
    border = found.cluster.within.latency + 16 // microbatches * WIDTH * 4 / found.cluster.within.bandwidth
    assert silent < found.step <= silent + 2 * (microbatches + ranks) * border
    assert found.bubble > (ranks - 1) / (microbatches + ranks - 1)


def test_a_slow_link_is_seen() -> None:
    """Messages over a slower link make a step longer; what copies exchange does, too, and shows as exchange."""
    x, mesh = torch.ones(16, WIDTH), {"data": 2, "pipeline": 2}
    links = {"within": {"bandwidth": "10MB/s", "latency": "1ms"}}
    fast, slow = (outlook(deep(), x, asked(mesh=mesh, **fields)) for fields in ({}, {"links": links}))
    assert slow.step > fast.step and slow.exchange > fast.exchange and slow.microbatch == fast.microbatch
    gradients = max(sum(each.numel() * 4 for each in deep(4).parameters()), 0)
    assert slow.exchange <= 2 * (1e-3 + gradients / 2 / 1e7) and slow.bound > fast.bound


def test_two_hosts_are_slower_than_one() -> None:
    fields = {"mesh": {"data": 4, "pipeline": 2}, "links": {"between": {"network": "Ethernet-10G"}}}
    one, two = (outlook(deep(), torch.ones(16, WIDTH), asked(**fields, hosts=hosts)) for hosts in (1, 2))
    assert one.step < two.step and "2 hosts" in str(two) and "between hosts" not in str(one)


def test_what_does_not_fit_is_shown_and_says_so() -> None:
    spec = {**asked(), "devices": [{"device": "cuda:99", "hardware": "H100", "memory": "40kB"}]}
    found = outlook(deep(), torch.ones(8, WIDTH), spec)
    assert found.excess == max(found.memory) - 40_000 > 0 and "more than it has" in str(found)


def test_fsdp2_shards_what_the_optimizer_keeps() -> None:
    """And nothing else while a step lasts, for a stage is one group, whole from its first forward to its last backward."""
    parameters = sum(each.numel() * 4 for each in deep().parameters())
    mesh, x = {"data": 4, "pipeline": 1}, torch.ones(4, WIDTH)
    spec = {**asked(mesh=mesh), "optimizer": "adamw"}
    sizes = {
        wrap: outlook(deep(), x, {**spec, "distributed": {**spec["distributed"], "wrap": wrap}}).memory[0] for wrap in WRAPS
    }
    assert sizes["ddp"] - sizes["none"] == parameters, "buckets"
    assert sizes["fsdp2"] < sizes["none"] and sizes["fsdp2"] > 2 * parameters


def test_memory_counts_what_each_schedule_has_in_flight() -> None:
    """GPipe keeps what all microbatches save, and 1F1B what as many as there are stages do."""
    x = torch.ones(64, WIDTH)
    sizes = {name: outlook(deep(), x, asked(schedule=name, microbatches=16)).memory for name in ("gpipe", "1f1b")}
    values = 4 * (4 * WIDTH) * 4  # four layers, each keeps its input: 4 rows of floats
    assert sizes["gpipe"][0] - sizes["1f1b"][0] == pytest.approx(values * (16 - 2), rel=0.25)
    assert sizes["gpipe"][1] - sizes["1f1b"][1] == pytest.approx(values * (16 - 1), rel=0.25)


def test_the_optimizer_and_ties_are_in_the_memory() -> None:
    plain, adam = (outlook(deep(), torch.ones(8, WIDTH), {**asked(), "optimizer": name}).memory for name in ("none", "adamw"))
    parameters = sum(each.numel() * 4 for each in deep().parameters())
    assert sum(adam) - sum(plain) == pytest.approx(2 * parameters, rel=0.01)


class Attention(nn.Module):
    """One layer, with a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)[:, None]
        queries, keys, values = self.into(x + places).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_a_model_on_meta_takes_what_it_takes_with_storage() -> None:
    """On meta attention is made of other ops, which keep squares of the sequence."""
    real, x = nn.Sequential(Attention(), Attention()), torch.ones(4, 512, WIDTH)
    with torch.device("meta"):
        meta, y = nn.Sequential(Attention(), Attention()), torch.ones(4, 512, WIDTH)
    one, other = (outlook(model, batch, asked()) for model, batch in ((real, x), (meta, y)))
    assert one.memory == other.memory and one.cut.borders == other.cut.borders
    assert max(one.memory) < 4 * 512 * 512 * 4 * 4, "four heads' squares alone would be more"


def test_ranks_that_share_a_weight_sum_its_gradient() -> None:
    tied = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    free = outlook(tied, torch.ones(4, WIDTH), asked())
    tied[2].weight = tied[0].weight
    found = outlook(tied, torch.ones(4, WIDTH), asked())
    assert found.cut.ties and found.tied > 0 == free.tied and found.step == found.timeline.step + found.tied


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"schedule": "interleaved_1f1b"}, "stages_per_rank to 2 or more"),
        ({"stages_per_rank": 2}, "1f1b gives each rank one stage"),
        ({"schedule": "zbv_zero_bubble", "stages_per_rank": 3}, "two stages, and stages_per_rank is 3"),
        ({"microbatches": 1}, "needs a microbatch for each of 2 ranks|as many microbatches"),
        (
            {"schedule": "interleaved_zero_bubble", "stages_per_rank": 2, "mesh": {"data": 2, "pipeline": 2}},
            "wrong gradients on the last stage",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        kind_of(DistributedSpec(**{"mesh": {"pipeline": 2}, "microbatches": 4, **fields}))


def test_every_stage_is_held_once() -> None:
    for kind in SCHEDULES.values():
        each = 2 if kind.several else 1
        held = [stage for rank in range(4) for stage in kind.stages_of(rank, 4, each)]
        assert sorted(held) == list(range(4 * each))


def test_too_many_stages() -> None:
    with pytest.raises(PlacementError, match="cannot be cut into 9 stages: there are 7 places"):
        outlook(deep(), torch.ones(8, WIDTH), asked(mesh={"pipeline": 9}, microbatches=8, schedule="gpipe"))


def test_a_model_without_ops_has_no_place_for_a_cut() -> None:
    """It was said to have "-1 places for cuts"."""
    with pytest.raises(PlacementError, match="cannot be cut into 2 stages: there are 0 places"):
        outlook(nn.Identity(), torch.ones(8, WIDTH), asked(mesh={"pipeline": 2}, microbatches=2, schedule="gpipe"))


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ({"pipeline": 2**14}, "cannot be cut into 16384 stages: there are 7 places"),
        ({"pipeline": 10**9}, "distributed.mesh.pipeline: 1000000000 should be less than or equal to 16384"),
        ({"data": 2**14, "tensor": 2**14}, "a mesh has at most 131072 ranks, and data 16384 x pipeline 1 x tensor 16384 has"),
    ],
)
def test_numbers_with_noughts_too_many_are_refused_at_once(mesh: dict[str, int], said: str) -> None:
    """Thousands of stages took all memory before they were found to be too many, and a billion ranks took for ever."""
    with pytest.raises((PlacementError, SpecError), match=said):
        outlook(deep(), torch.randn(8, WIDTH), asked(mesh=mesh, schedule="gpipe"))


def test_a_branch_axis_may_have_more_ranks_than_there_are_ops() -> None:
    """Links between all pairs of them were made."""
    outlook(deep(2), torch.randn(8, WIDTH), asked(mesh={"branch": 2**10}, schedule="gpipe"))


def test_inspect_shows_it_on_a_laptop(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    layers = "torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))"
    model.write_text(f"import torch\nmodel = {layers}\nexample_inputs = torch.ones(8, 8)\n")
    spec = Path(__file__).parent.parent / "specs" / "pipeline_x_data.yaml"
    shown = CliRunner().invoke(app, ["inspect", str(model), "--spec", str(spec)])
    assert shown.exit_code == 0, shown.output
    assert "1f1b, 8 microbatches, 2 ranks x 2 copies, ddp" in shown.output and "rank 1: stage 1" in shown.output
    data = json.loads(CliRunner().invoke(app, ["inspect", str(model), "--spec", str(spec), "--format", "json"]).output)
    assert [rank["stages"] for rank in data["ranks"]] == [[0], [1]] and data["lower_bound"] <= data["step_seconds"]


def test_what_copies_cannot_be_made_of_is_not_predicted() -> None:
    """FSDP2 takes no weights that lie channels last: ``mesh: auto`` chose it all the same, and the job was refused."""
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 8)
    model, x = nn.Sequential(*layers).to(memory_format=torch.channels_last), torch.randn(8, 3, 8, 8)
    assert outlook(model, x, {"distributed": {"mesh": {"auto": True, "data": 2}, "ranks": 2}}).asked.wrap == "ddp"
    with pytest.raises(SpecError, match=r"takes contiguous parameters, and 0\.weight has shape"):
        outlook(model, x, {"distributed": {"mesh": {"data": 2}, "wrap": "fsdp2"}})


def test_each_stage_has_one_dtype_under_fsdp2() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), Double(), nn.Linear(8, 8).double(), nn.Linear(8, 8).double())
    spec = {"mesh": {"data": 2, "pipeline": 2}, "microbatches": 4, "wrap": "fsdp2"}
    assert outlook(model, torch.ones(8, 8), {"distributed": spec}).asked.wrap == "fsdp2"
    with pytest.raises(SpecError, match=r"one dtype in each stage, and one has 0\.weight of torch\.float32"):
        outlook(model, torch.ones(8, 8), {"distributed": {"mesh": {"data": 2}, "wrap": "fsdp2"}})


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()
