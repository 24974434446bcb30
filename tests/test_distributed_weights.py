"""Each rank reads from a checkpoint what it holds, and nothing else, into a model that was built without memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

JOB = Path(__file__).parent / "jobs" / "weights.py"


class Tied(nn.Module):
    """The state of the job's model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(40, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.idle, self.head = nn.Linear(16, 16), nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight


def test_a_rank_reads_what_it_holds(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = Tied().state_dict()
    torch.save(state, tmp_path / "whole.pt")
    safetensors.save_file({key: value for key, value in state.items() if key != "head.weight"}, tmp_path / "model.safetensors")
    out = tmp_path / "out.json"
    words = ["--standalone", "--nproc-per-node", "2", str(JOB), str(tmp_path), str(out)]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = json.loads(out.read_text())
    assert first["apart"] < 1e-5 and second["apart"] < 1e-5
    for rank in (first, second):
        assert rank["read"] == rank["held"], "nothing else has a value"
    assert set(first["held"]) | set(second["held"]) == set(state)
    assert set(first["held"]) & set(second["held"]) == {"embed.weight", "head.weight"}, "the tie, under both of its keys"
    assert {"idle.weight", "idle.bias"} <= set(first["held"]), "what is never called is with the first stage"
