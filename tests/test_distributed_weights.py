"""Each rank reads from a checkpoint what it holds, and nothing else, into a model that was built without memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from jobs.torchrun import start
from jobs.weights import Tied

JOB = Path(__file__).parent / "jobs" / "weights.py"


def test_a_rank_reads_what_it_holds(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = Tied().state_dict()
    torch.save(state, tmp_path / "whole.pt")
    safetensors.save_file({key: value for key, value in state.items() if key != "head.weight"}, tmp_path / "model.safetensors")
    out = tmp_path / "out.json"
    start(2, JOB, tmp_path, out)
    first, second = json.loads(out.read_text())
    assert first["apart"] < 1e-5 and second["apart"] < 1e-5
    for rank in (first, second):
        assert rank["read"] == rank["held"], "nothing else has a value"
    assert set(first["held"]) | set(second["held"]) == set(state)
    assert set(first["held"]) & set(second["held"]) == {"embed.weight", "head.weight"}, "the tie, under both of its keys"
    assert {"idle.weight", "idle.bias"} <= set(first["held"]), "what is never called is with the first stage"
