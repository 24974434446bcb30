"""Training over ranks is training in one process: losses, norms of gradients, and every parameter after ten steps.

The one process runs the microbatches of a step one after the other. Where ranks sum in its order too, bits are equal.
One job makes several trainings, for its start is what takes the time.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs.nets import BY_ITSELF, ROWS, TRAININGS, optimizer_of, rows_of
from jobs.torchrun import cases, start
from lanes import OLD_TORCH
from torch import nn

JOBS = Path(__file__).parent / "jobs"
CLIP = 0.5

Case = dict[str, Any]


def case(
    net: str,
    schedule: str,
    *,
    clip: float = CLIP,
    data: int = 1,
    pipeline: int = 2,
    tensor: int = 1,
    branch: int = 1,
    every: int = 1,
    order: float = 2.0,
    **options: Any,
) -> Case:
    mesh = {"data": data, "pipeline": pipeline, "branch": branch, "tensor": tensor}
    return {
        "net": net,
        "clip": clip,
        "every": every,
        "order": order,
        "distributed": {"mesh": mesh, "schedule": schedule, "microbatches": 4, **options},
    }


def run_job(request: pytest.FixtureRequest, folder: Path, ranks: int, known: dict[str, Case]) -> list[dict[str, Any]]:
    """What each rank wrote of the cases that this run asks for."""
    asked = cases(request)
    (folder / "cases.json").write_text(json.dumps({name: case for name, case in known.items() if name in asked}))
    start(ranks, JOBS / "train.py", folder, timeout=240)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def alone(case: Case) -> tuple[list[float], list[float], nn.Module]:
    """Losses, norms and the model of one process."""
    training = TRAININGS[case["net"]]
    model = training.model()
    optimizer = optimizer_of(model)
    data, microbatches = case["distributed"]["mesh"]["data"], case["distributed"]["microbatches"]
    each = ROWS // data // microbatches
    losses, norms = [], []
    for number, batch in enumerate(training.batches(), 1):
        total = []
        for first in range(0, ROWS, each):
            part = rows_of(batch, first, first + each)
            pair = (model(**part),) if case["net"] in BY_ITSELF else (_called(model, part[0]), part[1])
            loss = training.loss(*pair) / microbatches
            (loss / data).backward()
            total.append(loss.detach())
        losses.append((torch.stack(total).sum() / data).item())
        if number % case["every"]:
            continue
        if case["clip"]:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), case["clip"], case["order"]).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, model


def _called(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def assert_same_training(case: Case, found: list[dict[str, Any]], *, bitwise: bool = False) -> None:
    losses, norms, model = alone(case)
    limits = {"rtol": 0.0, "atol": 0.0} if bitwise else {"rtol": 1e-4, "atol": 2e-6}
    seen: defaultdict[str, int] = defaultdict(int)
    wanted = dict(model.named_parameters())
    assert losses[-1] != losses[0]
    for rank in found:
        assert rank["losses"] == pytest.approx(losses, rel=limits["rtol"], abs=limits["atol"])
        assert rank["norms"] == pytest.approx(norms, rel=limits["rtol"], abs=limits["atol"])
        for key, values in rank["parameters"].items():
            seen[key] += 1
            torch.testing.assert_close(torch.tensor(values), wanted[_first_key(model, key)].detach(), **limits)
    assert {_first_key(model, key) for key in seen} == set(wanted), "no rank has it"
    if case["clip"]:
        assert max(norms) > case["clip"], "nothing was clipped"


def _first_key(model: nn.Module, key: str) -> str:
    """The key under which `named_parameters` gives a parameter, of any key that it has."""
    parameter = model.get_parameter(key)
    return next(name for name, each in model.named_parameters() if each is parameter)


def of_older_engines(cases: dict[str, Case]) -> dict[str, Case]:
    """Less what an older torch's engines cannot do: docs/limits.md."""

    def beyond(case: Case) -> bool:
        layout = case["distributed"]
        if layout["mesh"]["pipeline"] > 1 or "stages_per_rank" in layout:  # a value between stages gets no gradient
            return case["net"] in ("aside", "last alone", "hinted", "in part")
        return case["net"] == "in part" and layout.get("wrap") == "fsdp2"

    return {name: case for name, case in cases.items() if not beyond(case)}


SLOW = {"within": {"bandwidth": "10MB/s", "latency": "1us"}}  # so that no logits are gathered for a loss
SEVERAL = {"stages_per_rank": 2}
PAIRS = {
    "gpipe": case("tied", "gpipe"),
    "interleaved_zero_bubble": case("tied", "interleaved_zero_bubble", **SEVERAL),
    "zbv_zero_bubble": case("shared", "zbv_zero_bubble", **SEVERAL),
    "what a loss keeps, zbv": case("beside", "zbv_zero_bubble", **SEVERAL),
    "gates and frozen stages": case("routed", "zbv_zero_bubble", clip=0.1, **SEVERAL),
    "data, ddp": case("tied", "gpipe", data=2, pipeline=1),
    "data, fsdp2": case("shared", "gpipe", data=2, pipeline=1, wrap="fsdp2", order=math.inf, clip=0.02),
    "tensor": case("shared", "gpipe", pipeline=1, tensor=2, order=3.0, clip=0.1),
    "tensor, u-net": case("unet", "gpipe", clip=0.05, pipeline=1, tensor=2),
    "values that layers keep": case("keeping", "1f1b"),
    "branches": case("towers", "gpipe", pipeline=1, branch=2),
    "loss over a vocabulary": case("words", "gpipe", clip=0.1, pipeline=1, tensor=2, links=SLOW),
    "not reached": case("aside", "1f1b"),
    "not reached, two stages a rank, ddp": case("last alone", "interleaved_1f1b", clip=0.1, data=2, pipeline=1, **SEVERAL),
    "left out by one copy, fsdp2": case("in part", "gpipe", data=2, pipeline=1, wrap="fsdp2"),
    "means of all batches": case("averaging", "1f1b"),
    "what layers look at and keep": case("hinted", "1f1b", clip=0.1),
    "what a transform gives": case("mapped", "1f1b", clip=0.1),
    "masks of a first call": case("late", "1f1b"),
    "results of any number of rows": case("picked", "1f1b", clip=0.1, recompute="segments"),
    "results of any number of rows, fsdp2": case("picked", "gpipe", clip=0.1, data=2, pipeline=1, wrap="fsdp2"),
    "masks of a first call, tensor": case("late", "gpipe", clip=0.1, pipeline=1, tensor=2),
    "buffers that a backward reads": case("cooling", "gpipe"),
    "buffers that a backward reads, zbv": case("cooling", "zbv_zero_bubble", **SEVERAL),
    "buffers that a backward reads, tensor": case("cooling", "gpipe", pipeline=1, tensor=2, recompute="segments"),
}
BITWISE = {
    "bits gpipe": case("skipping", "gpipe", clip=0.0),
    "bits 1f1b": case("skipping", "1f1b", clip=0.0),
    "bits interleaved_1f1b": case("skipping", "interleaved_1f1b", clip=0.0, **SEVERAL),
    "bits u-net": case("unet", "1f1b", clip=0.0),
    "bits again": case("skipping", "1f1b", clip=0.0, recompute="segments"),
}
FOURS = {
    "four stages": case("tied", "1f1b", pipeline=4),
    "branches x pipeline": case("towers", "1f1b", branch=2),
    "one layer for all stages, ddp": case("repeated", "interleaved_1f1b", data=2, every=2, **SEVERAL),
    "tensor x pipeline": case("tied", "interleaved_1f1b", tensor=2, **SEVERAL),
    "tensor x pipeline, two steps for one": case("layers", "1f1b", tensor=2, every=2, clip=0.1),
    "tensor x data, fsdp2": case("shared", "gpipe", data=2, pipeline=1, tensor=2, wrap="fsdp2"),
}
MORE_BITWISE = {
    "bits again, u-net": case("unet", "1f1b", clip=0.0, recompute="segments"),
}
MORE = {
    "interleaved_1f1b": case("shared", "interleaved_1f1b", **SEVERAL),
    "1f1b": case("shared", "1f1b"),
    "u-net": case("unet", "1f1b", clip=0.05),
    "again": case("shared", "1f1b", recompute="segments"),
    "looped_bfs": case("tied", "looped_bfs", **SEVERAL),
    "three stages a rank": case("tied", "interleaved_1f1b", stages_per_rank=3),
    "one microbatch": case("shared", "gpipe", microbatches=1, order=1.0, clip=5.0),
    "two steps for one of the optimizer": case("tied", "1f1b", every=2),
    "complex numbers, branches": case("waves", "gpipe", clip=0.01, pipeline=1, branch=2),
    "complex numbers, tensor": case("waves", "gpipe", clip=0.01, pipeline=1, tensor=2),
    "complex numbers, four stages": case("waves", "interleaved_1f1b", clip=0.01, **SEVERAL),
    "values that layers keep, zbv": case("keeping", "zbv_zero_bubble", **SEVERAL),
    "a stage without parameters": case("tailed", "1f1b"),
    "a branch without parameters": case("tailed", "gpipe", pipeline=1, branch=2),
    "again, tensor": case("tied", "gpipe", pipeline=1, tensor=2, recompute="segments"),
    "again, branches": case("towers", "gpipe", pipeline=1, branch=2, recompute="stage"),
    "u-net, four stages": case("unet", "interleaved_1f1b", clip=0.05, **SEVERAL),
    "stages again": case("keeping", "gpipe", recompute="stage"),
    "again, zbv": case("keeping", "zbv_zero_bubble", recompute="segments", **SEVERAL),
    "again, zero bubble": case("tied", "interleaved_zero_bubble", recompute="segments", **SEVERAL),
    "again, fsdp2": case("tied", "gpipe", data=2, pipeline=1, wrap="fsdp2", recompute="segments"),
    "again, ddp": case("tied", "gpipe", data=2, pipeline=1, recompute="segments"),
    "not reached, zbv": case("aside", "zbv_zero_bubble", every=2, **SEVERAL),
    "what layers look at and keep, zbv": case("hinted", "zbv_zero_bubble", clip=0.1, **SEVERAL),
    "left out by one copy, ddp": case("in part", "gpipe", data=2, pipeline=1),
    "not reached, branches": case("aside", "gpipe", pipeline=1, branch=2),
    "means of all batches, tensor": case("averaging", "gpipe", pipeline=1, tensor=2),
    "means of all batches, again": case("averaging", "1f1b", recompute="segments"),
    "again, loss over a vocabulary": case("words", "gpipe", clip=0.1, pipeline=1, tensor=2, links=SLOW, recompute="segments"),
}
MORE_ON_FOUR = {
    "not reached, 2x2, ddp": case("aside", "1f1b", data=2),
    "2x2, fsdp2, gpipe": case("tied", "gpipe", data=2, wrap="fsdp2"),
    "tensor x data, fsdp2, u-net": case("unet", "gpipe", clip=0.05, data=2, pipeline=1, tensor=2, wrap="fsdp2"),
    "2x2, fsdp2, u-net": case("unet", "gpipe", clip=0.05, data=2, wrap="fsdp2"),
    "2x2, ddp": case("tied", "1f1b", data=2),
    "tensor of four": case("tied", "gpipe", pipeline=1, tensor=4),
    "one layer for all stages, fsdp2": case("repeated", "interleaved_1f1b", data=2, wrap="fsdp2", **SEVERAL),
    "2x2, fsdp2": case("shared", "1f1b", data=2, wrap="fsdp2"),
    "two steps for one, 2x2, fsdp2": case("shared", "1f1b", data=2, wrap="fsdp2", every=2),
    "2x2, fsdp2, without parameters": case("tailed", "gpipe", data=2, wrap="fsdp2"),
    "branches x pipeline, frozen": case("routed", "1f1b", clip=0.1, branch=2),
    "branches x data": case("towers", "gpipe", data=2, pipeline=1, branch=2),
    "again, 2x2, fsdp2": case("tied", "1f1b", data=2, wrap="fsdp2", recompute="segments"),
    "tensor x data, ddp": case("shared", "gpipe", data=2, pipeline=1, tensor=2),
    "data only": case("tied", "gpipe", data=4, pipeline=1),
    "again, tensor x pipeline": case("tied", "interleaved_1f1b", tensor=2, recompute="segments", **SEVERAL),
    "again, branches x pipeline": case("towers", "1f1b", branch=2, recompute="stage"),
    "not reached, 2x2, fsdp2": case("aside", "1f1b", data=2, wrap="fsdp2", every=2),
    "not reached, tensor x pipeline": case("aside", "interleaved_1f1b", tensor=2, **SEVERAL),
    "left out by one copy, 2x2, ddp": case("in part", "1f1b", data=2),
    "left out by one copy, 2x2, fsdp2": case("in part", "1f1b", data=2, wrap="fsdp2"),
    "2x2, ddp, without parameters": case("tailed", "1f1b", data=2),
}
if OLD_TORCH:
    PAIRS, MORE, MORE_ON_FOUR = map(of_older_engines, (PAIRS, MORE, MORE_ON_FOUR))
EIGHTS = {
    "2x2x2, ddp": case("tied", "1f1b", data=2, tensor=2),
    "2x2x2, fsdp2": case("tied", "1f1b", data=2, tensor=2, wrap="fsdp2"),
    "pipeline x branches x tensor": case("towers", "1f1b", branch=2, tensor=2),
    "2x2x2, t5": case("t5", "1f1b", data=2, tensor=2),
}
MODELS = {
    "t5": case("t5", "1f1b"),
    "t5, four stages": case("t5", "interleaved_1f1b", **SEVERAL),
    "gpt2": case("gpt2", "1f1b"),
    "gpt2, zbv": case("gpt2", "zbv_zero_bubble", **SEVERAL),
    "t5, tensor": case("t5", "gpipe", pipeline=1, tensor=2),
    "gpt2, tensor": case("gpt2", "gpipe", pipeline=1, tensor=2),
    "clip, tensor": case("clip", "gpipe", pipeline=1, tensor=2),
    "clip": case("clip", "1f1b"),
    "clip, four stages": case("clip", "looped_bfs", **SEVERAL),
}

Job = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_job(request, tmp_path_factory.mktemp("two"), 2, PAIRS | BITWISE)


@pytest.fixture(scope="module")
def four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_job(request, tmp_path_factory.mktemp("four"), 4, FOURS)


@pytest.fixture(scope="module")
def more(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_job(request, tmp_path_factory.mktemp("more"), 2, MORE | MORE_BITWISE)


@pytest.fixture(scope="module")
def more_on_four(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_job(request, tmp_path_factory.mktemp("more_on_four"), 4, MORE_ON_FOUR)


@pytest.fixture(scope="module")
def eight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_job(request, tmp_path_factory.mktemp("eight"), 8, EIGHTS)


@pytest.fixture(scope="module")
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run_job(request, tmp_path_factory.mktemp("models"), 2, MODELS)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PAIRS)
def test_two_ranks_train_as_one_process_does(two: Job, name: str) -> None:
    assert_same_training(PAIRS[name], [rank[name] for rank in two])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", BITWISE)
def test_bits_are_equal_where_sums_have_one_order(two: Job, name: str) -> None:
    assert_same_training(BITWISE[name], [rank[name] for rank in two], bitwise=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FOURS)
def test_four_ranks_train_as_one_process_does(four: Job, name: str) -> None:
    assert_same_training(FOURS[name], [rank[name] for rank in four])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_of_two_ranks_train_as_one_process_does(more: Job, name: str) -> None:
    assert_same_training(MORE[name], [rank[name] for rank in more])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_BITWISE)
def test_more_bits_are_equal_where_sums_have_one_order(more: Job, name: str) -> None:
    assert_same_training(MORE_BITWISE[name], [rank[name] for rank in more], bitwise=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_ON_FOUR)
def test_more_of_four_ranks_train_as_one_process_does(more_on_four: Job, name: str) -> None:
    assert_same_training(MORE_ON_FOUR[name], [rank[name] for rank in more_on_four])


@pytest.mark.slow
@pytest.mark.parametrize("name", EIGHTS)
def test_eight_ranks_train_as_one_process_does(eight: Job, name: str) -> None:
    assert_same_training(EIGHTS[name], [rank[name] for rank in eight])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_of_hugging_face_train_as_in_one_process(models: Job, name: str) -> None:
    assert_same_training(MODELS[name], [rank[name] for rank in models])
