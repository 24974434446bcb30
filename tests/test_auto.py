"""``mesh: auto``: beside a search that looks at every way by itself, and what is said of what was not taken."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from partitioner.cli.main import app
from partitioner.distributed.pipeline.schedules import SCHEDULES
from partitioner.distributed.predicted.auto import parts, ways
from partitioner.distributed.predicted.bench import Bench
from partitioner.distributed.predicted.bounds import with_bubble
from partitioner.distributed.predicted.loads import BACKWARD
from partitioner.distributed.predicted.outlook import outlook
from partitioner.distributed.predicted.prediction import Outlook
from partitioner.errors import PartitionerError, PlacementError, SpecError
from partitioner.ir.cluster import Cluster
from partitioner.ir.machine import DEFAULT_LINK
from partitioner.ir.units import format_size
from partitioner.spec.cluster import build_cluster
from partitioner.spec.discover import build_machine
from partitioner.spec.distributed import DistributedSpec
from partitioner.spec.spec import load_spec

WIDTH, ROWS = 32, 8
NO_TENSOR = {"auto": True, "tensor": 1}
SLOW = {"within": {"bandwidth": "100MB/s"}}
SMALL = {"devices": [{"device": "cuda:99", "hardware": "H100", "memory": "100kB"}], "optimizer": "adamw"}


def uneven() -> nn.Module:
    return nn.Sequential(*(nn.Linear(one, other) for one, other in pairwise((WIDTH, 64, 16, 64, 8, 64, 32))))


def everything(asked: Mapping[str, Any], rest: Mapping[str, Any], ranks: int) -> list[Outlook]:
    """The prediction of every way, none of them left out."""
    section = DistributedSpec(ranks=ranks, **asked)
    whole = load_spec({**rest, "distributed": section})
    device = build_machine(whole).devices[0]
    bench = Bench(uneven(), torch.ones(ROWS, WIDTH), None, whole, device, build_cluster(whole, section, device))
    found = []
    for way in ways(section, bench.cluster, ROWS):
        with suppress(PartitionerError):
            found.append(bench.of_job(way))
    return found


def test_a_way_is_predicted_as_if_it_had_been_asked_for() -> None:
    """Each from the spec that says just that, with one copy's part of the batch."""
    for found in everything({"mesh": NO_TENSOR, "schedule": "1f1b", "wrap": "ddp"}, SMALL, 2):
        named = {name: getattr(found.asked, name) for name in ("schedule", "microbatches", "wrap", "recompute")}
        mesh = found.asked.mesh.model_dump(exclude={"auto"})
        alone = outlook(uneven(), torch.ones(ROWS // mesh["data"], WIDTH), {**SMALL, "distributed": {**named, "mesh": mesh}})
        assert {**alone.data(), "auto": None} == {**found.data(), "auto": None}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("ranks", "mesh"), [(2, NO_TENSOR), pytest.param(4, "auto", marks=pytest.mark.slow)], ids=["2", "4"])
@pytest.mark.parametrize(
    ("asked", "rest"),
    [({}, {}), ({"links": SLOW}, {}), ({"schedule": "1f1b", "links": SLOW}, SMALL)],
    ids=["plain", "slow", "small"],
)
def test_auto_takes_the_best_of_all(ranks: int, mesh: object, asked: Mapping[str, Any], rest: Mapping[str, Any]) -> None:
    """Pruning by bounds and by memory loses nothing."""
    asked = {"mesh": mesh, **asked}
    taken = outlook(uneven(), torch.ones(ROWS, WIDTH), {**rest, "distributed": {"ranks": ranks, **asked}})
    each = everything(asked, rest, ranks)
    fitting = [found for found in each if not found.excess]
    assert len(fitting) < len(each) or not rest, "the cap leaves something out"
    assert taken.step == pytest.approx(min(found.step for found in fitting)) and taken.asked.mesh.size == ranks
    assert taken.choice is not None and taken.choice.rows[0].why == "taken"
    shown = {row.asked.mesh: row for row in taken.choice.rows}
    assert set(shown) == {found.asked.mesh for found in each}
    for place, row in shown.items():
        same = [found for found in each if found.asked.mesh == place]
        fits = [found.step for found in same if not found.excess]
        if not fits:
            least = min(max(found.memory) for found in same)
            assert row.why.startswith("does not fit") and (row.memory <= least if row.bubble is None else row.memory == least)
        elif row.bubble is None:
            assert taken.step <= row.step <= min(fits) * (1 + 1e-9), "what was not looked at could not have been faster"
        else:
            assert row.step >= min(fits) * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [pytest.param("none", marks=pytest.mark.slow), "segments"])
def test_no_bound_is_above_what_it_bounds(recompute: str) -> None:
    """By what is known at each point of the search, and by what smaller microbatches say of larger ones."""
    section = DistributedSpec(ranks=4, mesh="auto", links=SLOW, recompute=recompute)
    whole = load_spec({**SMALL, "distributed": section})
    device = build_machine(whole).devices[0]
    model = nn.Sequential(nn.Embedding(50, WIDTH), uneven())
    bench = Bench(model, torch.zeros(ROWS, dtype=torch.int64), None, whole, device, build_cluster(whole, section, device))
    foreseen = 0
    for count in (8, 4, 2, 1):  # the smallest microbatches first, as in the search
        some = [way for way in ways(section, bench.cluster, ROWS) if parts(way) == count]
        ahead = [bench.foreseen(way) for way in some]
        for way, seconds in zip(some, ahead, strict=True):
            with suppress(PartitionerError):
                bounds = [seconds, bench.least(way), bench.closer(way), bench.after_cut(way)]
                assert max(bounds) <= bench.of_job(way).step * (1 + 1e-9), (str(way.mesh), way.schedule, bounds)
                foreseen += seconds > 0
    assert foreseen > 20


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_least_wait_is_that_of_some_cut_and_of_none_below(name: str) -> None:
    """It is told stage by stage; a linear system for each way took a third of the time to choose a mesh of 512 ranks."""
    kind = SCHEDULES[name]
    each, draw = 2 if kind.several else 1, np.random.default_rng(0)
    for ranks, microbatches, again in itertools.product((1, 2, 5, 16), (1, 2, 6), ("none", "stage")):
        forward = 1 / (1 + BACKWARD + 2 * (again == "stage")) if kind.split else 1.0
        stages = np.arange(ranks * each)
        holder = np.array([kind.holder(stage, ranks) for stage in stages])
        here, before = holder[:, None] == holder, stages < stages[:, None]
        waits = microbatches * (here & ~before) + forward * before
        fields = {"mesh": {"pipeline": ranks}, "schedule": name, "stages_per_rank": each, "microbatches": microbatches}
        least = with_bubble(1.0, DistributedSpec(**fields, recompute=again))
        longest = (waits @ draw.dirichlet(0 * stages + 1.0, 50).T).max(axis=0)
        assert (longest >= least * (1 - 1e-9)).all()
        if microbatches > 1:  # of one cut, all waits are as long
            work = np.linalg.solve(waits, 0 * stages + 1.0)
            assert (work >= -1e-12).all() and least == pytest.approx(1 / work.sum(), rel=1e-9)
    assert with_bubble(1.0, DistributedSpec(**{**fields, "mesh": {"pipeline": 5000}, "microbatches": 2})) > 0


def test_only_what_is_open_is_chosen() -> None:
    fixed = {"schedule": "gpipe", "microbatches": 2, "wrap": "none"}
    found = outlook(uneven(), torch.ones(ROWS, WIDTH), {"distributed": {"mesh": NO_TENSOR, "ranks": 4, **fixed}})
    assert found.choice is not None
    for row in found.choice.rows:
        assert (row.asked.schedule, row.asked.microbatches, row.asked.wrap) == ("gpipe", 2, "none")


def test_an_axis_that_is_said_is_kept() -> None:
    cluster = Cluster(8, 8, DEFAULT_LINK, DEFAULT_LINK)
    meshes = {way.mesh for way in ways(DistributedSpec(mesh={"auto": True, "tensor": 2}), cluster, 8)}
    assert {(mesh.data, mesh.pipeline, mesh.tensor) for mesh in meshes} == {(4, 1, 2), (2, 2, 2), (1, 4, 2)}


def test_every_way_shares_out_one_batch() -> None:
    cluster = Cluster(16, 8, DEFAULT_LINK, DEFAULT_LINK)
    found = list(ways(DistributedSpec(mesh="auto"), cluster, 24))
    assert len(set(map(repr, found))) == len(found)
    assert all(way.mesh.size == 16 and 24 % (way.mesh.data * way.microbatches) == 0 for way in found)
    assert {way.mesh.tensor for way in found} == {1, 2, 4, 8}, "a tensor axis stays within a host"
    assert not [way for way in found if way.schedule == "zbv_zero_bubble" and way.mesh.data > 1]


def test_nothing_fits() -> None:
    """The error names the way that comes closest, and what it has too much."""
    spec = {**SMALL, "max_memory": {"cuda:99": "3kB"}, "distributed": {"mesh": NO_TENSOR, "ranks": 2}}
    with pytest.raises(PlacementError) as caught:
        outlook(uneven(), torch.ones(ROWS, WIDTH), spec)
    closest = min(everything({"mesh": NO_TENSOR}, spec, 2), key=lambda found: max(found.memory))
    said = f"fits 2 ranks in no way: {closest.asked.mesh}, the closest, has {format_size(closest.excess)} too much"
    assert said in str(caught.value) and closest.excess == max(closest.memory) - 3000


def test_there_is_no_way() -> None:
    with pytest.raises(SpecError, match="there is no way for 7 ranks to work together on this batch"):
        outlook(uneven(), torch.ones(4, WIDTH), {"distributed": {"mesh": "auto", "ranks": 7, "hosts": 7, "schedule": "1f1b"}})


def test_rows_that_the_model_refuses_are_left_out() -> None:
    """Batch norm refuses one row in train mode, so microbatches have two or more."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 4))
    found = outlook(model, torch.ones(ROWS, WIDTH), {"distributed": {"mesh": NO_TENSOR, "ranks": 2}})
    assert ROWS // (found.asked.mesh.data * found.asked.microbatches) > 1


def test_inspect_prints_why(tmp_path: Path) -> None:
    model, spec = tmp_path / "model.py", tmp_path / "auto.yaml"
    layers = "torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))"
    model.write_text(f"import torch\nmodel = {layers}\nexample_inputs = torch.ones(8, 8)\n")
    spec.write_text("distributed: {mesh: auto, ranks: 2}\n")
    shown = CliRunner().invoke(app, ["inspect", str(model), "--spec", str(spec)])
    assert shown.exit_code == 0, shown.output
    assert "auto: 2 ranks" in shown.output and "taken" in shown.output and "slower" in shown.output
    data = json.loads(CliRunner().invoke(app, ["inspect", str(model), "--spec", str(spec), "--format", "json"]).output)
    assert data["auto"]["meshes"][0]["mesh"] == data["mesh"] and data["lower_bound"] <= data["step_seconds"]
