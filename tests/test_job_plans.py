"""Plan files of jobs: what is applied is what was planned, and whatever does not fit is refused by what differs.

One job is started; apart from that, the steps of a job are made here, one after the other, with no rank.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jobs import planned
from jobs.nets import TRAININGS, optimizer_of
from jobs.torchrun import start
from torch import Tensor, nn

from partitioner.distributed.applied import cut_by, owners_by, refuse_other_model, refuse_other_ranks, settled_by, sharding_by
from partitioner.distributed.jobplan import JobPlan, plan
from partitioner.distributed.pipeline.branches import owners_of
from partitioner.distributed.pipeline.cut import Cut
from partitioner.distributed.pipeline.part import part_of
from partitioner.distributed.planfile import read_job
from partitioner.distributed.predicted.outlook import distributed_in
from partitioner.distributed.tensor import shards
from partitioner.distributed.tensor.local import Place
from partitioner.distributed.tensor.shards import shared
from partitioner.distributed.tensor.ways import rules_of
from partitioner.distributed.traced.example import Example, example_in
from partitioner.errors import InputError, PlacementError, SpecError, TraceError
from partitioner.frontend.check.interpret import interpret
from partitioner.ir.saved_job import SavedJob, SavedStage
from partitioner.ir.shared import Rule, Sharding
from partitioner.spec.cluster import build_cluster
from partitioner.spec.discover import build_machine
from partitioner.spec.document import LARGEST_FILE
from partitioner.spec.spec import Spec as LocalSpec
from partitioner.testing import build, recipes

CPU = torch.device("cpu")

Spec = dict[str, Any]


def asked(mesh: Any, microbatches: int = 4, *, rest: Spec | None = None, **options: Any) -> Spec:
    return {**(rest or {}), "distributed": {"mesh": mesh, "microbatches": microbatches, **options}}


@cache
def net(name: str) -> tuple[nn.Module, Any]:
    """A model, and one rank's batch."""
    training = TRAININGS[name]
    return training.model(), training.batches()[0][0]


TRACED: dict[Any, Example] = {}


def traced(model: nn.Module, x: Any, count: int, training: bool) -> Example:
    shapes = str(torch.utils._pytree.tree_map(lambda tensor: tuple(tensor.shape), x))
    with torch.set_grad_enabled(training):
        if (model, shapes, count, training) not in TRACED:
            TRACED[model, shapes, count, training] = example_in(model, x, None, count)
    return TRACED[model, shapes, count, training]


def apply(path: Path, model: nn.Module, x: Any, spec: Spec, *, training: bool = True) -> tuple[Example, Cut, Sharding | None]:
    """What every rank of a job does with a plan file."""
    document = read_job(path)
    whole, section = distributed_in(spec)
    found = settled_by(document, whole, section, training=training)
    example = traced(model, x, found.count, training)
    refuse_other_model(document, example.traced.graph)
    sharding = None
    if found.asked.mesh.tensor > 1:
        sharding = sharding_by(document, example)
        example = shared(example, sharding, Place(), CPU)[0]
    cut = cut_by(document, example.traced)
    for number in range(cut.count if found.asked.mesh.branch > 1 else 0):
        owners_by(document, part_of(example.traced, cut, number), set(cut.ties))
    cluster = build_cluster(whole, found.asked, build_machine(whole, ["cpu"]).devices[0])
    for rank in range(found.asked.mesh.size):
        refuse_other_ranks(document, model, cut, cluster, CPU, rank)
    return example, cut, sharding


def drawn(draw: random.Random) -> Callable[..., tuple[Rule, ...]]:
    """What `rules_of` gives, with seconds at random."""
    return lambda *args: tuple(replace(rule, seconds=draw.random() * 1e-3) for rule in rules_of(*args))


def assert_as_planned(made: JobPlan, cut: Cut, sharding: Sharding | None) -> None:
    assert cut.stage == made.cut.stage and cut.seconds == made.cut.seconds and cut.bound == made.cut.bound
    assert str(cut) == str(made.cut) and str(sharding) == str(made.sharding)
    if sharding is not None and made.sharding is not None:
        assert sharding.axis == made.sharding.axis and sharding.state == made.sharding.state
        ways = ({name: (rule.inputs, rule.output) for name, rule in each.rules.items()} for each in (sharding, made.sharding))
        assert next(ways) == next(ways)


def refused(
    path: Path, *words: str, model: nn.Module | None = None, x: Any = None, spec: Spec | None = None, **options: Any
) -> None:
    known, batch = net("tied")
    with pytest.raises(SpecError) as error:
        apply(path, model or known, batch if x is None else x, spec or SPEC, **options)
    for each in words:
        assert re.search(each, str(error.value)), str(error.value)


SPEC = asked({"pipeline": 2, "tensor": 2})


@pytest.fixture(scope="module")
def tied() -> JobPlan:
    return plan(*net("tied"), SPEC)


@pytest.fixture
def path(tied: JobPlan, tmp_path: Path) -> Path:
    """A file with the plan of a model with a tie, for two stages on two ranks each."""
    tied.save(tmp_path / "job.yaml")
    return tmp_path / "job.yaml"


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """The file, changed by hand."""
    document = yaml.safe_load(path.read_text())
    edit(document)
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


# What is applied is what was planned ----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("tied", {"pipeline": 2}),
        ("unet", {"pipeline": 2, "tensor": 2}),
        ("towers", {"pipeline": 2, "branch": 2, "tensor": 2}),
        pytest.param("tied", {"data": 2, "tensor": 2}, marks=pytest.mark.slow),
        pytest.param("unet", {"data": 2, "pipeline": 3}, marks=pytest.mark.slow),
    ],
)
def test_what_is_applied_is_what_was_planned(name: str, mesh: dict[str, int], tmp_path: Path) -> None:
    (model, x), spec = net(name), asked(mesh, rest={"optimizer": "adamw"})
    made = plan(model, x, spec)
    made.save(tmp_path / "job.yaml")
    assert read_job(tmp_path / "job.yaml") == made.document
    _, cut, sharding = apply(tmp_path / "job.yaml", TRAININGS[name].model(), x, spec)
    assert_as_planned(made, cut, sharding)
    assert (sharding is not None) == ("tensor" in mesh) and (sharding is None or "S(" in str(sharding))


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    recipe=recipes(),
    mesh=st.sampled_from(({"tensor": 2}, {"pipeline": 2, "tensor": 2})),
    training=st.booleans(),
    draw=st.randoms(use_true_random=False),
)
def test_plans_of_random_programs_are_applied(
    tmp_path_factory: pytest.TempPathFactory, recipe: Any, mesh: dict[str, int], training: bool, draw: random.Random
) -> None:
    """With rules chosen at random among those that ops have, so that many are met."""
    model = build(recipe)
    x, spec = tuple(tensor.detach() for tensor in model.example_inputs(0)), asked(mesh, 1, schedule="gpipe")

    made = None
    short = suppress(PlacementError, TraceError, InputError)  # for two stages; or a result is made by no op
    with short, mock.patch.object(shards, "rules_of", drawn(draw)):
        made = plan(model, x, spec, training=training)
    assume(made is not None)
    path = tmp_path_factory.mktemp("plans") / "job.yaml"
    made.save(path)
    _, cut, sharding = apply(path, model, x, spec, training=training)
    assert_as_planned(made, cut, sharding)


def test_a_mesh_that_was_chosen_is_applied_to_auto_and_to_the_mesh(tmp_path: Path) -> None:
    """With ``auto`` the example is the batch of the job, and with the mesh written down that of one copy."""
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), torch.ones(4, 8)
    auto = {"distributed": {"mesh": "auto", "ranks": 2, "wrap": "ddp"}}
    made = plan(model, x, auto)
    made.save(tmp_path / "job.yaml")
    assert made.choice is not None and "auto: 2 ranks" in str(made)
    section = read_job(tmp_path / "job.yaml").distributed
    _, cut, sharding = apply(tmp_path / "job.yaml", model, x, {"distributed": {"mesh": "auto", "timeout": 5}})
    assert_as_planned(made, cut, sharding)
    _, cut, sharding = apply(tmp_path / "job.yaml", model, x[: 4 // section["mesh"]["data"]], {"distributed": section})
    assert_as_planned(made, cut, sharding)
    words = "distributed wrap is ddp in the plan and none here", "distributed ranks is 2 in the plan and 4 here"
    refused(tmp_path / "job.yaml", *words, model=model, x=x, spec={"distributed": {"mesh": "auto", "ranks": 4, "wrap": "none"}})


def test_a_plan_of_a_model_without_memory_is_applied_to_one_with_it(tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = TRAININGS["tied"].build().eval()
    model, x = net("tied")
    made = plan(empty, x, SPEC)
    made.save(tmp_path / "job.json")
    for each in (model, empty):
        _, cut, sharding = apply(tmp_path / "job.json", each, x, SPEC)
        assert_as_planned(made, cut, sharding)


def test_a_plan_names_what_each_rank_holds(tied: JobPlan) -> None:
    """Beside the parts that ranks really make of the model, whose tie is in both stages."""
    model, x = net("tied")
    example = example_in(model, x, None, 4)
    assert tied.sharding is not None
    local = shared(example, tied.sharding, Place(), CPU)[0]
    for number, stage in enumerate(tied.document.stages):
        part = part_of(local.traced, Cut(local.traced.graph, tied.cut.stage, tied.cut.seconds, tied.cut.bound), number)
        assert set(stage.state) == set(part.traced.state) and "embed.weight" in stage.state
        assert list(stage.ops) == [op.name for op in part.graph.ops]
    assert [rank.stages for rank in tied.document.ranks] == [(0,), (0,), (1,), (1,)]
    assert [rank.place["tensor"] for rank in tied.document.ranks] == [0, 1, 0, 1]
    several = plan(model, x, asked({"pipeline": 2}, schedule="zbv_zero_bubble", stages_per_rank=2, wrap="none"))
    assert [rank.stages for rank in several.document.ranks] == [(0, 3), (1, 2)]


def test_devices_are_those_of_their_hosts() -> None:
    """A laptop plans for GPUs that it does not have."""
    spec = asked({"data": 2, "pipeline": 2}, rest={"devices": [{"device": "cuda", "hardware": "H100"}]}, hosts=2)
    rows = plan(*net("tied"), spec).document.ranks
    assert [(row.host, row.device) for row in rows] == [(0, "cuda:0"), (0, "cuda:1"), (1, "cuda:0"), (1, "cuda:1")]


def test_the_file_is_short_lines_for_people(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert max(map(len, lines)) <= 128 and len(lines) < 60
    assert any(re.fullmatch(r"    R, S\(\d\) -> \w.*: \[.*\w+.*\]", line) for line in lines)
    assert "- {host: 0, device: cpu, place: {data: 0, pipeline: 1, branch: 0, tensor: 0}, stages: [1]}" in lines


# What does not fit is refused -----------------------------------------------------------------------------------------


class Other(nn.Module):
    """The model of the plan, called otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = net("tied")[0]

    def forward(self, ids: Tensor) -> Any:
        return self.inside(ids)


def test_another_model_is_refused(path: Path) -> None:
    refused(path, "model is Skipping in the plan and Other here", "op inside_embed_embedding = .* is only here", model=Other())
    longer = TRAININGS["tied"].model()
    longer.layers.append(nn.Linear(16, 16))
    refused(path, "op layers_6_linear = .* is only here", model=longer)
    other = TRAININGS["tied"].model()
    other.layers[5] = nn.Linear(16, 16, bias=False)
    refused(path, "ops have other arguments or shapes: fingerprint [0-9a-f]{16} in the plan and [0-9a-f]{16} here", model=other)


def test_another_batch_is_refused(path: Path) -> None:
    _, x = net("tied")
    refused(path, r"input ids is int64\[4, 5\] in the plan and int64\[2, 5\] here", x=x[:8])


OTHER_SPECS: dict[str, tuple[Spec, str]] = {
    "mesh": (asked({"pipeline": 4}), "distributed mesh.tensor is 2 in the plan and 1 here"),
    "microbatches": (asked({"pipeline": 2, "tensor": 2}, 8), "microbatches is 4 in the plan and 8 here"),
    "schedule": (asked({"pipeline": 2, "tensor": 2}, schedule="gpipe"), "schedule is 1f1b in the plan and gpipe here"),
    "links": (
        asked({"pipeline": 2, "tensor": 2}, links={"within": {"bandwidth": "1GB/s"}}),
        "distributed links.within.bandwidth is only here",
    ),
    "optimizer": (asked({"pipeline": 2, "tensor": 2}, rest={"optimizer": "adamw"}), "spec: optimizer is only here"),
    "auto": (asked({"auto": True, "data": 2}), "distributed mesh.data is 1 in the plan and 2 here"),
}


@pytest.mark.parametrize("name", OTHER_SPECS)
def test_another_spec_is_refused(path: Path, name: str) -> None:
    spec, words = OTHER_SPECS[name]
    refused(path, "something else than is asked for", words, spec=spec)


def test_a_plan_for_training_is_none_for_inference(path: Path) -> None:
    refused(path, "call is parallelize in the plan and inference here", training=False)


def _stage(document: dict[str, Any], number: int, key: str) -> list[str]:
    return document["stages"][number][key]


EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown op": (lambda d: _stage(d, 0, "ops").append("relu_99"), 'stage 0 names "relu_99", which is no op of Skipping'),
    "lost op": (lambda d: _stage(d, 0, "ops").remove("layers_0_linear"), "op layers_0_linear is in no stage"),
    "op twice": (lambda d: _stage(d, 0, "ops").append("add"), "op add is written twice"),
    "leads back": (lambda d: d["stages"].reverse(), r"op \w+ is in stage 1, and \w+, which reads it, in stage 0"),
    "apart": (
        lambda d: _stage(d, 0, "ops").append(_stage(d, 1, "ops").pop(_stage(d, 1, "ops").index("layers_4_linear"))),
        "ops layers_4_linear and x_4 have to share a stage, and are in 0 and 1",
    ),
    "empty stage": (
        lambda d: d["stages"].append({"seconds": 0.0, "ops": [], "state": []}),
        r"stages.2.ops: .* at least 1 item",
    ),
    "one stage more": (
        lambda d: d["stages"].append({"seconds": 0.0, "ops": [_stage(d, 1, "ops").pop()]}),
        "it has 3 stages, and for data 1 x pipeline 2 x tensor 2 with 1 a rank there are 2",
    ),
    "no such way": (
        lambda d: d["sharding"].update(ops={"R, S(1), S(0) -> S(2)": ["layers_0_linear"]}),
        r'op layers_0_linear cannot be done as "R, S\(1\), S\(0\) -> S\(2\)" over 2 ranks; its ways are R, R, R -> R; ',
    ),
    "rule of another": (
        lambda d: d["sharding"]["ops"]["S(2) -> S(2)"].append("layers_5_linear"),
        "sharding: Value error, op layers_5_linear is written twice|layers_5_linear is written twice",
    ),
    "no rule at all": (
        lambda d: d["sharding"].update(ops={"__import__('os')": ["layers_0_linear"]}),
        r"layers_0_linear cannot be done as",
    ),
    "other form of no tensor": (
        lambda d: d["sharding"].update(ops={"S(0) -> S(0)": ["split"]}, state={}),
        r"op left reads split as \w+, and it is S\(0\) and cannot be converted",
    ),
    "unknown op shared out": (lambda d: d["sharding"].update(ops={"P -> P": ["relu_99"]}), '"relu_99", which is no op'),
    "form of a state": (
        lambda d: d["sharding"]["state"]["S(0)"].remove("layers.0.weight"),
        r"layers.0.weight is R in sharding.state, and the first op that uses it wants S\(0\)",
    ),
    "form of nothing": (
        lambda d: d["sharding"]["state"]["S(0)"].append("layers.9.weight"),
        '"layers.9.weight", which the model',
    ),
    "no sharding": (lambda d: d.pop("sharding"), "it has no sharding, and the tensor axis has 2 ranks"),
    "auto": (lambda d: d["distributed"]["mesh"].update(auto=True), "distributed.mesh is auto, and a plan says which"),
    "other schedule": (lambda d: d["distributed"].update(schedule="gpipe"), "schedule is gpipe in the plan and 1f1b here"),
    "unknown schedule": (lambda d: d["distributed"].update(schedule="2f2b"), "distributed.schedule: .*'gpipe'"),
    "device": (lambda d: d["ranks"][3].update(device="cuda:3"), "rank 3: device is cuda:3 in the plan and cpu here"),
    "place": (lambda d: d["ranks"].reverse(), "rank 0: place.pipeline is 1 in the plan and 0 here"),
    "a rank less": (lambda d: d["ranks"].pop(), "rows for 3 ranks, and mesh data 1 x pipeline 2 x tensor 2 has 4"),
    "key": (lambda d: _stage(d, 0, "state").pop(), r"stage 0 has layers\.\d\.\w+ only here"),
    "version": (lambda d: d.update(schema_version=2), "schema_version: .* less than or equal to 1"),
    "no bound": (lambda d: d.update(bound=float("nan")), "bound: "),
    "an input more": (lambda d: d["inputs"].update(more="int64[1]"), "input more is only in the plan"),
    "own key": (lambda d: d.update(model_code="print(1)"), "model_code: is no key here"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_was_edited_wrongly_is_refused(path: Path, name: str) -> None:
    edit, words = EDITS[name]
    refused(edited(path, edit), words)


def test_the_order_of_keys_says_nothing(path: Path) -> None:
    """What tools that write YAML had sorted was refused: "rank 0:s are in another order"."""
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()), sort_keys=True))
    apply(path, *net("tied"), SPEC)


BRANCHES = asked({"branch": 2})


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A file with the plan of three towers on two ranks of a branch axis."""
    _towers().save(tmp_path / "job.yaml")
    return tmp_path / "job.yaml"


@cache
def _towers() -> JobPlan:
    return plan(*net("towers"), BRANCHES)


def test_a_plan_has_what_each_rank_of_a_branch_axis_runs(split: Path) -> None:
    (model, x), made = net("towers"), _towers()
    owners = owners_of(traced(model, x, 4, True).traced, 2, build_machine(LocalSpec(), ["cpu"]).devices[0])
    (stage,) = read_job(split).stages
    assert stage.owners == owners and 0 < sum(owners.values()) < len(owners)
    assert "stage 0, branch 1: towers_" in str(made)
    assert [rank.place["branch"] for rank in made.document.ranks] == [0, 1]
    assert read_job(split).digest() != edited_document(split, lambda d: _moved(d, "towers_1_0_linear", 0)).digest()


def edited_document(path: Path, edit: Callable[[dict[str, Any]], object]) -> SavedJob:
    return read_job(edited(path, edit))


def _moved(document: dict[str, Any], name: str, rank: int) -> None:
    """An op on the second rank, or on the first."""
    (names,) = document["stages"][0]["branches"]
    if name in names:
        names.remove(name)
    names.extend([name] * rank)


BRANCH_EDITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown op": (
        lambda d: _moved(d, "relu_99", 1),
        'stage 0 names "relu_99" among its branches, and not among its ops',
    ),
    "op twice": (
        lambda d: d["stages"][0]["branches"][0].append(d["stages"][0]["branches"][0][0]),
        r"op \w+ is written twice",
    ),
    "none": (
        lambda d: d["stages"][0].pop("branches"),
        "stage 0 says what 1 ranks of a branch axis run, and there it has 2",
    ),
    "a rank more": (
        lambda d: d["stages"][0]["branches"].append([]),
        "stage 0 says what 3 ranks of a branch axis run, and there it has 2",
    ),
    "apart": (lambda d: _moved(d, "towers_0_1_relu", 1), r"ops towers_0_0_linear and towers_0_1_relu have to share a rank"),
    "no list": (lambda d: d["stages"][0].update(branches=["add"]), r"stages.0.branches.0: "),
    "place": (lambda d: d["ranks"].reverse(), "rank 0: place.branch is 1 in the plan and 0 here"),
    "mesh": (
        lambda d: d["distributed"]["mesh"].update(branch=1, data=2),
        "distributed mesh.branch is 1 in the plan and 2 here",
    ),
}


@pytest.mark.parametrize("name", BRANCH_EDITS)
def test_branches_that_were_edited_wrongly_are_refused(split: Path, name: str) -> None:
    edit, words = BRANCH_EDITS[name]
    model, x = net("towers")
    refused(edited(split, edit), words, model=model, x=x, spec=BRANCHES)


def test_who_uses_what_other_stages_have_is_on_the_first_rank(tmp_path: Path) -> None:
    (model, x), spec = net("tied"), asked({"pipeline": 2, "branch": 2})
    plan(model, x, spec).save(tmp_path / "job.yaml")
    apply(tmp_path / "job.yaml", model, x, spec)

    def swap(document: dict[str, Any]) -> None:
        for stage in document["stages"]:
            stage["branches"] = [[name for name in stage["ops"] if name not in stage["branches"][0]]]

    words = r"op embed_embedding is on 1, and has to be on 0, for other stages have what it uses"
    refused(edited(tmp_path / "job.yaml", swap), words, model=model, x=x, spec=spec)


class Scaled(nn.Module):
    """A table that no parameter has a part in, which all ranks make whole."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.arange(8) * 2.0


def test_what_has_to_be_whole_is_not_shared_out(tmp_path: Path) -> None:
    model, x, spec = Scaled(), torch.ones(4, 8), asked({"tensor": 2}, 1)
    made = plan(model, x, spec)
    table = next(op.name for op in traced(model, x, 1, True).traced.graph.ops if op.target == "mul")
    made.save(tmp_path / "job.yaml")
    edited(tmp_path / "job.yaml", lambda d: d["sharding"].update(ops={"S(0) -> S(0)": [table]}, state={}))
    words = r"op mul cannot be done as \"S\(0\) -> S\(0\)\" over 2 ranks; its ways are R -> R$"
    refused(tmp_path / "job.yaml", words, model=model, x=x, spec=spec)


def test_what_ranks_compute_on_is_that_of_the_plan(path: Path, tied: JobPlan) -> None:
    whole, section = distributed_in(SPEC)
    cluster = build_cluster(whole, section, build_machine(whole, ["cpu"]).devices[0])
    with pytest.raises(SpecError, match="rank 2: device is cpu in the plan and cuda:0 here"):
        refuse_other_ranks(read_job(path), net("tied")[0], tied.cut, cluster, torch.device("cuda", 0), 2)


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> tuple[nn.Module, Tensor, Example, SavedJob]:
    """A model that writes in place and joins early values again, its one microbatch, and a plan of two stages."""
    model, x = net("skipping")
    spec = asked({"pipeline": 2}, 1, schedule="gpipe")
    return model, x, example_in(model, x, None, 1), plan(model, x, spec).document


def test_stages_that_are_accepted_compute_what_the_model_does(whole: Any) -> None:
    """Two stages with a border anywhere, and perhaps an op on the wrong side of it: refused, or run one after the other."""
    model, x, example, document = whole
    wanted, names = model(x)["logits"], [op.name for op in example.traced.graph.ops]
    accepted, draw = 0, random.Random(0)
    cases = [(border, draw.choice([None, *names])) for border in range(1, len(names)) for _ in range(3)]
    for border, moved in cases:
        inside = [[name for n, name in enumerate(names) if (n >= border) != (name == moved)], []]
        inside[1] = [name for name in names if name not in inside[0]]
        stages = tuple(SavedStage(seconds=0.0, ops=tuple(ops)) for ops in reversed(inside) if ops)
        try:
            cut = cut_by(document.model_copy(update={"stages": stages}), example.traced)
        except SpecError:
            continue
        accepted += 1
        assert torch.equal(_in_stages(example, cut, x)["logits"], wanted)
    assert 0 < accepted < len(cases)


def _in_stages(example: Example, cut: Cut, x: Tensor) -> Any:
    """What a model returns whose stages run one after the other."""
    known = example.arguments((x,)) | {name: example.traced.state[key] for name, key in example.traced.graph.states.items()}
    for number in range(cut.count):
        part = part_of(example.traced, cut, number)
        results = interpret(part.graph, [known[name] for name in part.graph.arguments])
        known |= dict(zip(part.results, results, strict=True))
    return example.output([known[name] for name in example.traced.graph.outputs], known)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_in_a_file_it_is_read_or_refused(path: Path, tied: JobPlan, data: st.DataObject) -> None:
    """Some of the text is lost, written twice, or replaced by what means something in YAML."""
    tied.save(path)
    text = path.read_text()
    start = data.draw(st.integers(0, len(text)))
    stop = min(len(text), start + data.draw(st.integers(0, 40)))
    odd = data.draw(
        st.sampled_from(
            ["", "*a", "&a ", "!!python/object:os.system ", "{", "]", "2020-01-01", ".nan", "~", "\t", "\0", "- ", "? "]
        )
    )
    path.write_text(text[:start] + data.draw(st.sampled_from([odd, text[start:stop] * 2])) + text[stop:])
    try:
        found = read_job(path)
    except SpecError:
        return
    assert isinstance(found, SavedJob)
    found.digest()
    with suppress(SpecError):
        settled_by(found, *distributed_in(SPEC))


def test_plans_that_are_too_large_or_elsewhere_are_refused(path: Path, tied: JobPlan, tmp_path: Path) -> None:
    stage = tied.document.stages[0].model_copy(update={"ops": tuple(f"op_{number:060}" for number in range(20_000))})
    large = replace(tied, document=tied.document.model_copy(update={"stages": (stage, tied.document.stages[1])}))
    with pytest.raises(SpecError, match=r"takes 1.\d+ MiB in YAML, of which 1 MiB are read; end the name in .json"):
        large.save(path)
    assert read_job(path) == tied.document
    large.save(tmp_path / "job.json")
    assert read_job(tmp_path / "job.json") == large.document
    with pytest.raises(SpecError, match=r"not the path of a plan; it ends in .yaml, .yml or .json"):
        tied.save(tmp_path / "job.txt")
    for other in (read_job, tied.save):
        with pytest.raises(SpecError, match='"3": not the path of a plan'):  # pathlib's error, once
            other(3)  # type: ignore[operator]
    with pytest.raises(SpecError, match="cannot be written"):
        tied.save(tmp_path / "none" / "job.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        read_job(tmp_path / "none.yaml")
    (tmp_path / "long.yaml").write_text("#" * (LARGEST_FILE + 1))
    with pytest.raises(SpecError, match="larger than 1 MiB, which no plan is"):
        read_job(tmp_path / "long.yaml")


# A job ----------------------------------------------------------------------------------------------------------------


def test_a_job_does_what_its_files_say(tmp_path: Path) -> None:
    """A border where no planner would put it, and rules that were drawn at random: nothing is decided again."""
    model, x = net("tied")
    even = plan(model, x, planned.PIPELINE)
    even.save(tmp_path / "even.yaml")
    even.save(tmp_path / "cut.yaml")
    edited(tmp_path / "cut.yaml", lambda d: _border_after(d, "x", model))
    with mock.patch.object(shards, "rules_of", drawn(random.Random(1))):
        made = plan(model, x, planned.TENSOR)
    made.save(tmp_path / "shared.yaml")
    plan(model, x, planned.PIPELINE, training=False).save(tmp_path / "forward.yaml")
    plan(*net("towers"), planned.BRANCH).save(tmp_path / "branches.yaml")
    moved = _other_tower(tmp_path / "branches.yaml")
    start(2, Path(planned.__file__), tmp_path, PYTHONPATH=str(Path(__file__).parent))
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["cut"]["stage"] == read_job(tmp_path / "cut.yaml").stage != even.document.stage
    assert made.document.sharding is not None and first["shared"]["forms"].items() >= made.document.sharding.forms.items()
    training = TRAININGS["tied"]
    losses = _losses(training.model(), training.batches()[: planned.STEPS], training.loss)
    towers = TRAININGS["towers"]
    wanted = _losses(towers.model(), towers.batches()[: planned.STEPS], towers.loss)
    for rank in (first, second):
        assert rank["cut"]["losses"] == pytest.approx(losses, rel=1e-4)
        assert rank["shared"]["losses"] == pytest.approx(losses, rel=1e-4)
        assert rank["forward"] < 1e-5
        assert rank["branches"]["losses"] == pytest.approx(wanted, rel=1e-4)
    assert {*moved} <= {*second["branches"]["keys"]} and not {*moved} & {*first["branches"]["keys"]}
    assert re.search(r"RanksError.*plan: \w{16} on rank 0, and \w{16} on rank 1", str(first["other file"]))
    assert re.search(r"SpecError.*the model is Skipping in the plan and Linear here", str(first["other model"]))
    assert second["other file"] == second["other model"] == ["SystemExit", "1"]


def _other_tower(path: Path) -> list[str]:
    """Let the second rank run the ops of a tower that the first one runs; the keys of its layers."""
    (stage,) = read_job(path).stages
    tower = next(n for n in range(3) if not any(name.startswith(f"towers_{n}_") for name in stage.branches[0]))
    names = [name for name in stage.ops if name.startswith(f"towers_{tower}_")]
    edited(path, lambda d: d["stages"][0]["branches"][0].extend(names))
    return [key for key in stage.state if key.startswith(f"towers.{tower}.") and key.endswith(("weight", "bias"))]


def _border_after(document: dict[str, Any], last: str, model: nn.Module) -> None:
    """Two stages, the first of which ends with an op."""
    ops = [name for stage in document["stages"] for name in stage["ops"]]
    example, border = traced(model, net("tied")[1], 4, True), ops.index(last) + 1
    for stage, names in zip(document["stages"], (ops[:border], ops[border:]), strict=True):
        used = (key for name in names for key in example.traced.graph.by_name[name].state)
        stage.update(ops=names, state=list(dict.fromkeys(used)))


def _losses(model: nn.Module, batches: list[Any], loss: Callable[..., Tensor]) -> list[float]:
    """Of one process."""
    optimizer, found = optimizer_of(model), []
    for inputs, target in batches:
        mean = loss(model(**inputs) if isinstance(inputs, dict) else model(inputs), target)
        mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(mean.item())
    return found
