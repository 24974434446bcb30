"""A job on two hosts, each with a network of its own: the same losses, norms and parameters as in one process.

The hosts are network namespaces; where a machine does not let its users make any, there is nothing to test.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs.hosts import can_have_two, start_on_two
from test_distributed import JOBS, Case, assert_same_training, case

pytestmark = pytest.mark.skipif(not can_have_two(), reason="needs network namespaces that users may make")

CASES: dict[str, Case] = {
    "stages on two hosts, twice": case("skipping", "1f1b", clip=0.3, data=2, pipeline=2),
    "replicas on two hosts, with parts of layers on each": case(
        "gpt2", "gpipe", clip=0.3, data=2, pipeline=1, tensor=2, microbatches=1
    ),
}


@pytest.mark.slow
def test_two_hosts_train_as_one_process(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps(CASES))
    start_on_two(2, JOBS / "train.py", tmp_path)
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(4)]
    for name, asked in CASES.items():
        assert_same_training(asked, [each[name] for each in found])
