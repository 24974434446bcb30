"""A model without memory, of which each rank reads what it holds; a gradient scaler over ranks; warnings; merged outputs."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs.torchrun import start
from jobs.weights import Tied

JOBS = Path(__file__).parent / "jobs"


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks answers; of targets that are ignored a sixth of the cases, unless slow tests are asked for."""
    folder, state = tmp_path_factory.mktemp("short"), Tied().state_dict()
    safetensors = pytest.importorskip("safetensors.torch")
    torch.save(state, folder / "whole.pt")
    safetensors.save_file({key: value for key, value in state.items() if key != "head.weight"}, folder / "model.safetensors")
    start(2, JOBS / "short.py", folder, 1 if request.config.getoption("--slow") else 6)
    answers: list[dict[str, Any]] = json.loads((folder / "out.json").read_text())
    return answers


def test_a_rank_reads_what_it_holds(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["weights"] for rank in ranks)
    assert first["apart"] < 1e-5 and second["apart"] < 1e-5
    for rank in (first, second):
        assert rank["read"] == rank["held"], "nothing else has a value"
    assert set(first["held"]) | set(second["held"]) == set(Tied().state_dict())
    assert set(first["held"]) & set(second["held"]) == {"embed.weight", "head.weight"}, "the tie, under both of its keys"
    assert {"idle.weight", "idle.bias"} <= set(first["held"]), "what is never called is with the first stage"


def test_so_does_each_rank_of_a_branch_axis(ranks: list[dict[str, Any]]) -> None:
    """What passes between branches was made on the meta device, where the model was traced."""
    assert all(rank["branches"]["apart"] < 1e-5 for rank in ranks)


def test_all_ranks_skip_together(ranks: list[dict[str, Any]]) -> None:
    """The overflow is on the first rank alone; with torch's own scaler the second would step.

    So would optimizers that unscale by themselves (``fused=True``). Where nothing overflows, the scaler changes nothing. Under
    FSDP2 there may be whole numbers beside shards, and the default dtype is another.
    """
    for rank in ranks:
        found = rank["scaler"]
        assert found["apart"] == 0.0 and found["losses"] == 0.0, "a power of two scales without rounding"
        assert found["skipped"] == [0, 1, 1, 1]
        assert found["sharded"][0] == pytest.approx(found["sharded"][1], rel=1e-9)


def test_a_warning_is_said_once(ranks: list[dict[str, Any]]) -> None:
    """Each step put a filter of its own before the others, and so made Python forget what it had said."""
    assert [rank["warned"] for rank in ranks] == [["called"], ["called"]]


def test_outputs_of_microbatches_are_those_of_the_batch_or_refused(ranks: list[dict[str, Any]]) -> None:
    """What had as many rows as a microbatch by accident was put together: layers, weights, pairs of rows.

    What has several numbers for each row was refused, as logits are that come in one long row. Now values say in what order
    they are; zeros say nothing.
    """
    refused = {
        "as many weights as rows": "the model returns mul, of shape .* not one microbatch behind the other",
        "a mean over rows": "the model returns mean, of shape .* ask for one microbatch",
        "a pair of rows": "the model returns matmul, of shape .* ask for one microbatch",
        "how many rows": "the model returns [123] for [12] of a batch's [24] rows and [24] for all",
        "a list of rows": "another structure for a batch than for one of 2 microbatches",
        "steps backwards": "the model returns flip, of shape .* ask for one microbatch",
        "nothing but zeros": "the model returns mul, of shape .* ask for one microbatch",
    }
    for (name, first), last in zip(ranks[0]["outputs"].items(), ranks[1]["outputs"].values(), strict=True):
        for batch, said in last.items():
            if name in refused and batch != "all at once":
                assert re.search(refused[name], first[batch]), (name, batch, first[batch])
            else:
                assert said == "equal" and not first[batch], (name, batch, said, first[batch])


def test_ignored_targets_count_for_nothing_or_are_refused(ranks: list[dict[str, Any]]) -> None:
    """The mean of microbatches' means was another loss than the batch's wherever they ignored other numbers of targets."""
    for name, found in ranks[0]["ignored"].items():
        apart, said = found
        if name == "nothing":
            assert math.isnan(apart) and said == 0.0, "as in eager"
        elif "uneven" in name:
            assert apart < 1e-5 and ranks[1]["ignored"][name][0] < 1e-5, name
            assert re.search(r"a loss is divided by \d+ in one microbatch or copy and by .* Say what counts", said), name
        else:
            assert max(apart, said, *ranks[1]["ignored"][name]) < 1e-5, name
