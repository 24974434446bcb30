"""What is said of a job before there is one: stages, step time, bubble and memory, beside what a schedule's order gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from partitioner.cli.main import app
from partitioner.distributed.outlook import BACKWARD, outlook
from partitioner.distributed.schedules import SCHEDULES, kind_of
from partitioner.errors import PlacementError, SpecError
from partitioner.spec.distributed import DistributedSpec

WIDTH = 64


def deep(layers: int = 8) -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))


def asked(**fields: object) -> dict[str, object]:
    return {"distributed": {"mesh": {"pipeline": 2}, "microbatches": 4, **fields}}


def longest(forward: list[float], order: list[list[tuple[int, str, int]]]) -> float:
    """When the last of all is done: each rank does what its list says, in that order, once what it waits for is done."""
    done: dict[tuple[int, str, int], float] = {}
    free, place, last = [0.0] * len(order), [0] * len(order), len(forward) - 1
    while any(at < len(each) for at, each in zip(place, order, strict=True)):
        for rank, each in enumerate(order):
            if place[rank] == len(each):
                continue
            stage, kind, number = each[place[rank]]
            before = (stage - 1, "F", number) if kind == "F" else (stage + 1, "B", number)
            needs = [before] if 0 <= before[0] <= last else []
            needs += [(stage, "F", number)] if kind == "B" else []
            if all(one in done for one in needs):
                seconds = forward[stage] * (1 if kind == "F" else BACKWARD)
                free[rank] = max([free[rank], *(done[one] for one in needs)]) + seconds
                done[stage, kind, number] = free[rank]
                place[rank] += 1
    return max(done.values())


@pytest.mark.parametrize("microbatches", [4, 8])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_takes_what_the_order_of_1f1b_takes(ranks: int, microbatches: int) -> None:
    """Even stages: the formula is what comes of playing the order through."""
    found = outlook(deep(), torch.ones(16, WIDTH), asked(mesh={"pipeline": ranks}, microbatches=microbatches))
    order = []
    for rank in range(ranks):
        warm = min(microbatches, ranks - rank - 1)
        steady = [step for number in range(microbatches - warm) for step in ((rank, "F", warm + number), (rank, "B", number))]
        cool = [(rank, "B", number) for number in range(microbatches - warm, microbatches)]
        order.append([(rank, "F", number) for number in range(warm)] + steady + cool)
    even = [max(found.cut.seconds)] * ranks
    assert found.step == pytest.approx(longest(even, order))
    assert found.step * (1 - found.bubble) == pytest.approx(microbatches * max(found.microbatch))
    assert found.bound <= longest(list(found.cut.seconds), order) * (1 + 1e-9)


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
